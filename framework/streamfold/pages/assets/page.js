"use strict";
(() => {
  const byId = (id) => document.getElementById(id);
  const data = JSON.parse(byId("data").textContent);
  const graph = data.graph;
  const drawing = byId("drawing");
  const LETTER = 7.3, LINE = 16, LETTERS_MAX = 38, ZOOM_MIN = 0.25, ZOOM_MAX = 2;
  const nodes = new Map(graph.nodes.map((node) => [node.id, node]));
  const drawn = new Map();
  const slug = (text) => text.replaceAll(" ", "-");

  // Every text of the data becomes a text node: none of it is ever read as markup.
  function make(name, text, attributes = {}) {
    const element = document.createElement(name);
    return filled(element, text, attributes);
  }
  function draw(name, attributes, text) {
    // The name space of the drawing in the page: an address of it in this script would be the only one of the page.
    const element = document.createElementNS(drawing.namespaceURI, name);
    return filled(element, text, attributes);
  }
  function filled(element, text, attributes) {
    if (text !== undefined) element.textContent = text;
    for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
    return element;
  }
  const shortened = (text) =>
    text.length <= LETTERS_MAX ? text : `${text.slice(0, LETTERS_MAX / 2)}…${text.slice(1 - LETTERS_MAX / 2)}`;

  function lines(node) {
    if (node.kind === "handler") {
      const group = graph.groups.length > 1 ? ` · group ${node.group}` : "";
      return [node.name, `${node.details.kind}${group}`].map(shortened);
    }
    const [first, ...others] = node.name.split(" / ");
    return others.length ? [first, others.join(" / ")].map(shortened) : [shortened(first)];
  }

  function laidOut() {
    const layout = new dagre.graphlib.Graph({ multigraph: true });
    layout.setGraph({ rankdir: "LR", nodesep: 14, ranksep: 60, marginx: 12, marginy: 12 });
    layout.setDefaultEdgeLabel(() => ({}));
    for (const node of graph.nodes) {
      const texts = lines(node);
      const width = Math.max(...texts.map((text) => text.length)) * LETTER + 20;
      layout.setNode(node.id, { width, height: texts.length * LINE + 12 });
    }
    graph.edges.forEach((edge, number) => layout.setEdge(edge.source, edge.target, {}, String(number)));
    dagre.layout(layout);
    return layout;
  }

  let size = { width: 1, height: 1 }, zoom = 1;
  function drawGraph() {
    if (!graph.nodes.length) return;
    const layout = laidOut(), { width, height } = layout.graph();
    size = { width, height };
    drawing.setAttribute("viewBox", `0 0 ${width} ${height}`);
    const marker = draw("marker", { id: "arrow", viewBox: "0 0 8 8", refX: 7, refY: 4, markerWidth: 7, markerHeight: 7,
      markerUnits: "userSpaceOnUse", orient: "auto" });
    marker.append(draw("path", { d: "M0,0 L8,4 L0,8 z" }));
    const definitions = draw("defs", {});
    definitions.append(marker);
    drawing.append(definitions);
    graph.edges.forEach((edge, number) => {
      const points = layout.edge({ v: edge.source, w: edge.target, name: String(number) }).points;
      const path = draw("path", { class: `edge ${slug(edge.kind)}`, "marker-end": "url(#arrow)",
        d: points.map((point, at) => `${at ? "L" : "M"}${point.x.toFixed(1)},${point.y.toFixed(1)}`).join(" ") });
      Object.assign(path.dataset, edge);
      drawing.append(path);
    });
    for (const node of graph.nodes) drawing.append(drawNode(node, layout.node(node.id)));
    setZoom(1);
  }

  function drawNode(node, { x, y, width, height }) {
    const label = [node.kind === "handler" ? `handler, ${node.details.kind}` : node.kind, node.name].join(": ");
    const element = draw("g", { class: "node", role: "button", tabindex: "0",
      transform: `translate(${(x - width / 2).toFixed(1)},${(y - height / 2).toFixed(1)})` });
    Object.assign(element.dataset, { id: node.id, kind: node.kind, name: node.name });
    if (node.group !== null) element.dataset.group = node.group;
    element.append(draw("title", {}, label));
    element.append(draw("rect", { class: slug(node.kind), width, height, rx: node.kind === "handler" ? 3 : height / 3 }));
    lines(node).forEach((text, number) => element.append(
      draw("text", { x: 10, y: 6 + LINE * (number + 0.75), ...(number ? { class: "second" } : {}) },
        text)));
    element.addEventListener("click", () => open(node.id));
    element.addEventListener("keydown", (event) => {
      if (event.key !== "Enter" && event.key !== " ") return;
      event.preventDefault();
      open(node.id);
    });
    drawn.set(node.id, element);
    return element;
  }

  function setZoom(wanted) {
    zoom = Math.min(ZOOM_MAX, Math.max(ZOOM_MIN, wanted));
    drawing.setAttribute("width", size.width * zoom);
    drawing.setAttribute("height", size.height * zoom);
  }

  function centre(id) {
    drawn.get(id).scrollIntoView({ block: "center", inline: "center" });
  }

  function near(id) {
    const edges = graph.edges.filter((edge) => edge.source === id || edge.target === id);
    return new Set([id, ...edges.flatMap((edge) => [edge.source, edge.target])]);
  }

  let opened = null;
  function open(id) {
    opened = id;
    const node = nodes.get(id), around = near(id);
    for (const [each, element] of drawn) {
      element.classList.toggle("open", each === id);
      element.classList.toggle("faded", !around.has(each));
    }
    for (const path of drawing.querySelectorAll(".edge")) {
      const touches = path.dataset.source === id || path.dataset.target === id;
      path.classList.toggle("near", touches);
      path.classList.toggle("faded", !touches);
    }
    byId("panel").dataset.node = id;
    byId("panel-title").textContent = node.name;
    byId("panel-body").replaceChildren(panelOf(node));
  }
  function close() {
    const before = opened;
    opened = null;
    delete byId("panel").dataset.node;
    for (const element of drawing.querySelectorAll(".open, .faded, .near"))
      element.classList.remove("open", "faded", "near");
    byId("panel-title").textContent = "No node is open";
    byId("panel-body").replaceChildren();
    if (before) drawn.get(before).focus();
  }

  const HEADINGS = { kind: "Kind", group: "Group", sources: "Reads", parts: "Reads too", lookups: "Looks up",
    targets: "Writes", guard: "Guard", write_units: "Write units per record", on_error: "On error",
    looks_up_rows_of_its_items: "Looks up rows that these handlers make of its own items", declared_at: "Declared at" };
  function panelOf(node) {
    const list = make("dl");
    const add = (heading, values) => {
      if (!values.length) return;
      list.append(make("dt", heading));
      for (const value of values) list.append(make("dd", value));
    };
    if (node.kind !== "handler") add("Kind", [node.kind]);
    for (const [name, heading] of Object.entries(HEADINGS)) {
      const value = node.details[name];
      if (value !== undefined && value !== null && value !== "") add(heading, [].concat(value).map(String));
    }
    const links = (heading, found) => {
      if (!found.length) return;
      list.append(make("dt", heading));
      const holder = make("dd");
      for (const [kind, id] of found) {
        const button = make("button", `${kind}: ${nodes.get(id).name}`, { type: "button" });
        button.addEventListener("click", () => { open(id); centre(id); });
        holder.append(button);
      }
      list.append(holder);
    };
    links("From", graph.edges.filter((edge) => edge.target === node.id).map((edge) => [edge.kind, edge.source]));
    links("To", graph.edges.filter((edge) => edge.source === node.id).map((edge) => [edge.kind, edge.target]));
    return list;
  }

  function matches(node, words) {
    const text = [node.name, node.kind, node.group ?? "", node.details.kind ?? ""].join(" ").toLowerCase();
    return words.every((word) => text.includes(word));
  }
  const RESULTS_MAX = 20;
  function search() {
    const words = byId("search").value.toLowerCase().split(/\s+/).filter(Boolean);
    const found = words.length ? graph.nodes.filter((node) => matches(node, words)) : [];
    const exact = byId("search").value.trim().toLowerCase();
    found.sort((one, other) => (other.name.toLowerCase() === exact) - (one.name.toLowerCase() === exact));
    for (const [id, element] of drawn) element.classList.toggle("found", found.some((node) => node.id === id));
    byId("found").textContent = words.length ? `${found.length} found` : "";
    byId("results").replaceChildren(...found.slice(0, RESULTS_MAX).map((node) => {
      const button = make("button", `${node.kind}: ${node.name}`, { type: "button" });
      button.addEventListener("click", () => { open(node.id); centre(node.id); });
      const entry = make("li");
      entry.append(button);
      return entry;
    }));
    return found;
  }

  function legend() {
    const entries = [];
    const add = (css, text) => {
      const entry = make("li");
      entry.append(make("span", undefined, { class: css, "aria-hidden": "true" }), text);
      entries.push(entry);
    };
    for (const kind of new Set(graph.nodes.map((node) => node.kind))) add(`swatch ${slug(kind)}`, kind);
    for (const kind of new Set(graph.edges.map((edge) => edge.kind))) add(`stroke ${slug(kind)}`, kind);
    for (const group of graph.groups) {
      const entry = make("li", `group ${group}`);
      entry.dataset.group = group;
      entries.push(entry);
    }
    byId("legend").replaceChildren(...entries);
  }

  function compared(one, other) {
    return typeof one === "number" && typeof other === "number" ? one - other : String(one).localeCompare(String(other));
  }
  function table(found, number) {
    const holder = make("div"), scroll = make("div", undefined, { class: "scroll", tabindex: "0", role: "region",
      "aria-label": found.caption });
    const element = make("table"), head = make("thead"), titles = make("tr"), body = make("tbody");
    element.append(make("caption", found.caption), head, body);
    head.append(titles);
    let order = null, down = false;
    const filter = make("input", undefined, { type: "search", id: `filter-${number}`, autocomplete: "off" });
    found.columns.forEach((column, at) => {
      const title = make("th", undefined, { scope: "col" }), button = make("button", column, { type: "button" });
      button.addEventListener("click", () => {
        down = order === at && !down;
        order = at;
        for (const each of titles.children) each.removeAttribute("aria-sort");
        title.setAttribute("aria-sort", down ? "descending" : "ascending");
        fill();
      });
      title.append(button);
      titles.append(title);
    });
    const detailed = found.details.length > 0;
    if (detailed) titles.append(make("th", "More", { scope: "col" }));
    const rows = found.rows.map((cells, at) => ({ cells, details: detailed ? found.details[at] : [] }));
    function fill() {
      const wanted = filter.value.toLowerCase();
      const shown = rows.filter(({ cells }) => cells.some((cell) => String(cell ?? "").toLowerCase().includes(wanted)));
      if (order !== null) shown.sort((one, other) => compared(one.cells[order], other.cells[order]) * (down ? -1 : 1));
      body.replaceChildren(...shown.map(({ cells, details }) => {
        const row = make("tr");
        for (const cell of cells)
          row.append(make("td", cell ?? "", typeof cell === "number" ? { class: "number" } : {}));
        if (detailed) {
          const more = make("td");
          for (const [title, texts] of details) {
            const unfolded = make("details");
            unfolded.append(make("summary", title), ...texts.map((text) => make("p", text)));
            more.append(unfolded);
          }
          row.append(more);
        }
        return row;
      }));
    }
    filter.addEventListener("input", fill);
    if (rows.length > 1) holder.append(make("label", "Filter ", { for: filter.id }), filter);
    fill();
    scroll.append(element);
    holder.append(scroll);
    if (found.omitted) holder.append(make("p", found.omitted));
    return holder;
  }

  function report() {
    let tables = 0;
    const links = [["graph", "Graph"]];
    for (const section of data.sections ?? []) {
      const element = make("section", undefined, { id: section.id, "aria-labelledby": `${section.id}-title` });
      element.append(make("h2", section.title, { id: `${section.id}-title` }));
      for (const note of section.notes) element.append(make("p", note));
      for (const each of section.tables) element.append(table(each, tables++));
      byId("report").append(element);
      links.push([section.id, section.title]);
    }
    if (links.length > 1) byId("sections").replaceChildren(...links.map(([id, title]) =>
      make("a", title, { href: `#${id}` })));
  }

  function setTheme(dark) {
    document.documentElement.dataset.theme = dark ? "dark" : "light";
    byId("theme").textContent = dark ? "Light" : "Dark";
  }

  byId("title").textContent = `Application ${graph.application}`;
  const handlers = graph.nodes.filter((node) => node.kind === "handler").length;
  const tenants = graph.tenant ? ` Tenants are kept apart by {${graph.tenant}}.` : "";
  byId("summary").textContent = `${handlers} handlers in ${graph.groups.length} groups.${tenants}`;
  setTheme(matchMedia("(prefers-color-scheme: dark)").matches);
  byId("theme").addEventListener("click", () => setTheme(document.documentElement.dataset.theme !== "dark"));
  byId("smaller").addEventListener("click", () => setZoom(zoom / 1.25));
  byId("larger").addEventListener("click", () => setZoom(zoom * 1.25));
  byId("fit").addEventListener("click", () => setZoom((byId("frame").clientWidth - 4) / size.width));
  byId("search").addEventListener("input", search);
  byId("search").addEventListener("keydown", (event) => {
    const found = event.key === "Enter" ? search() : [];
    if (found.length) { open(found[0].id); centre(found[0].id); }
  });
  document.addEventListener("keydown", (event) => { if (event.key === "Escape" && opened) close(); });
  legend();
  drawGraph();
  report();
})();

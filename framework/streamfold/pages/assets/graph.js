// The graph: the whole application, or the neighbourhood of a handler. Where nodes and edges are, the data say.
const graph = data.graph, drawing = byId("drawing");
const LINE = 16, ZOOM_MIN = 0.25, ZOOM_READABLE = 0.6, ZOOM_MAX = 2, RESULTS_MAX = 20;
const nodes = new Map(), drawn = new Map(), paths = [];
const frames = draw("g", {});
let view = null, zoom = 1, opened = null;

function drawGraph() {
  const { texts, sizes } = data.drawing;
  for (const node of graph.nodes) nodes.set(node.id, node);
  const marker = draw("marker", { id: "arrow", viewBox: "0 0 8 8", refX: 7, refY: 4, markerWidth: 7, markerHeight: 7,
    markerUnits: "userSpaceOnUse", orient: "auto" });
  marker.append(draw("path", { d: "M0,0 L8,4 L0,8 z" }));
  const definitions = draw("defs", {});
  definitions.append(marker);
  drawing.append(definitions, frames);
  for (const edge of graph.edges) {
    const path = draw("path", { class: `edge ${slug(edge.kind)}`, "marker-end": "url(#arrow)" });
    Object.assign(path.dataset, edge);
    paths.push(path);
    drawing.append(path);
  }
  for (const node of graph.nodes) drawing.append(drawNode(node, texts[node.id], sizes[node.id]));
  listComponents();
  show(data.drawing.whole);
  setZoom(Math.min(1, Math.max(ZOOM_READABLE, fitting().width)));
}

function drawNode(node, lines, [width, height]) {
  const label = [node.kind === "handler" ? `handler, ${node.details.kind}` : node.kind, node.name].join(": ");
  const element = draw("g", { class: "node", role: "button", tabindex: "0" });
  Object.assign(element.dataset, { id: node.id, kind: node.kind, name: node.name });
  if (node.group !== null) element.dataset.group = node.group;
  element.append(draw("title", {}, label));
  element.append(draw("rect", { class: slug(node.kind), width, height, rx: node.kind === "handler" ? 3 : height / 3 }));
  lines.forEach((text, number) => element.append(
    draw("text", { x: 10, y: 6 + LINE * (number + 0.75), ...(number ? { class: "second" } : {}) }, text)));
  element.addEventListener("click", () => open(node.id));
  element.addEventListener("keydown", (event) => {
    if (event.key !== "Enter" && event.key !== " ") return;
    event.preventDefault();
    open(node.id);
  });
  drawn.set(node.id, element);
  return element;
}

function show(wanted) {
  if (view === wanted) return;
  view = wanted;
  const [width, height] = view.size;
  drawing.setAttribute("viewBox", `0 0 ${width} ${height}`);
  frames.replaceChildren(...view.frames.flatMap(({ box: [x, y, width, height], title }) => [
    draw("rect", { class: "component", x, y, width, height, rx: 6 }),
    draw("text", { class: "component-title", x: x + 10, y: y + 18 }, title)]));
  for (const [id, element] of drawn) {
    const corner = view.corners[id];
    element.classList.toggle("away", !corner);
    if (corner) element.setAttribute("transform", `translate(${corner})`);
  }
  paths.forEach((path, number) => {
    path.classList.toggle("away", !(number in view.paths));
    if (number in view.paths) path.setAttribute("d", view.paths[number]);
  });
  byId("whole").hidden = view === data.drawing.whole;
}

function fitting() {
  const frame = byId("frame");
  return { width: (frame.clientWidth - 4) / view.size[0], height: (frame.clientHeight - 4) / view.size[1] };
}
function setZoom(wanted) {
  zoom = Math.min(ZOOM_MAX, Math.max(ZOOM_MIN, wanted));
  drawing.setAttribute("width", view.size[0] * zoom);
  drawing.setAttribute("height", view.size[1] * zoom);
}
function showWhole() {
  show(data.drawing.whole);
  setZoom(Math.min(1, Math.max(ZOOM_READABLE, fitting().width)));
}

function centre(id) {
  drawn.get(id).scrollIntoView({ block: "nearest", inline: "nearest" });
  const box = drawn.get(id).getBoundingClientRect(), frame = byId("frame"), around = frame.getBoundingClientRect();
  frame.scrollBy(box.x + box.width / 2 - around.x - around.width / 2,
    box.y + box.height / 2 - around.y - around.height / 2);
}

function near(id) {
  const edges = graph.edges.filter((edge) => edge.source === id || edge.target === id);
  return new Set([id, ...edges.flatMap((edge) => [edge.source, edge.target])]);
}

// A handler opens its neighbourhood first. A key stays in the drawing that shows it.
function open(id) {
  opened = id;
  const node = nodes.get(id), around = near(id), own = data.drawing.near[id];
  byId("panel").hidden = false;
  byId("panel").dataset.node = id;
  byId("panel-title").textContent = node.name;
  byId("panel-body").replaceChildren(panelOf(node));
  if (own) {
    show(own);
    const { width, height } = fitting();
    setZoom(Math.min(1, Math.max(ZOOM_READABLE, Math.min(width, height))));
  } else if (!view.corners[id]) showWhole();
  for (const [each, element] of drawn) {
    element.classList.toggle("open", each === id);
    element.classList.toggle("faded", !own && !around.has(each));
  }
  for (const path of paths) {
    const touches = path.dataset.source === id || path.dataset.target === id;
    path.classList.toggle("near", touches);
    path.classList.toggle("faded", !own && !touches);
  }
  centre(id);
}
function close() {
  const before = opened;
  opened = null;
  delete byId("panel").dataset.node;
  byId("panel").hidden = true;
  for (const element of drawing.querySelectorAll(".open, .faded, .near"))
    element.classList.remove("open", "faded", "near");
  byId("panel-title").textContent = "No node is open";
  byId("panel-body").replaceChildren();
  showWhole();
  if (!before) return;
  centre(before);
  drawn.get(before).focus({ preventScroll: true });
}

// Beside the drawing: its components, each with its handlers.
function listComponents() {
  const found = data.drawing.whole.frames;
  byId("components-title").textContent = `${found.length} component${found.length === 1 ? "" : "s"}`;
  byId("components").replaceChildren(...found.map(({ title, nodes: own }, number) => {
    const entry = make("li"), unfolded = make("details"), list = make("ul");
    unfolded.open = found.length === 1;
    unfolded.append(make("summary", title), list);
    for (const id of own.filter((each) => nodes.get(each).kind === "handler")) {
      const item = make("li"), button = make("button", nodes.get(id).name, { type: "button" });
      button.addEventListener("click", () => open(id));
      item.append(button);
      list.append(item);
    }
    unfolded.addEventListener("toggle", () => { if (unfolded.open) showFrame(number); });
    entry.append(unfolded);
    return entry;
  }));
}
function showFrame(number) {
  if (opened) close();
  const [x, y] = data.drawing.whole.frames[number].box;
  byId("frame").scrollTo(x * zoom, y * zoom);
}

const HEADINGS = { kind: "Kind", group: "Group", sources: "Reads", parts: "Reads too",
  reads: "A change of a part reads", lookups: "Looks up", targets: "Writes", guard: "Guard", calls: "Calls",
  write_units: "Write units per record", on_error: "On error",
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
      button.addEventListener("click", () => open(id));
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
function search() {
  const words = byId("search").value.toLowerCase().split(/\s+/).filter(Boolean);
  const found = words.length ? graph.nodes.filter((node) => matches(node, words)) : [];
  const exact = byId("search").value.trim().toLowerCase();
  found.sort((one, other) => (other.name.toLowerCase() === exact) - (one.name.toLowerCase() === exact));
  const ids = new Set(found.map((node) => node.id));
  for (const [id, element] of drawn) element.classList.toggle("found", ids.has(id));
  byId("found").textContent = words.length ? `${found.length} found` : "";
  byId("results").replaceChildren(...found.slice(0, RESULTS_MAX).map((node) => {
    const button = make("button", `${node.kind}: ${node.name}`, { type: "button" });
    button.addEventListener("click", () => open(node.id));
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


function startGraph() {
  links.push(["graph", "Graph"]);
  byId("graph").hidden = false;
  const handlers = graph.nodes.filter((node) => node.kind === "handler").length;
  const tenants = graph.tenant ? ` Tenants are kept apart by {${graph.tenant}}.` : "";
  byId("title").textContent = `Application ${graph.application}`;
  byId("summary").textContent = `${handlers} handlers in ${graph.groups.length} groups.${tenants}`;
  legend();
  drawGraph();
  byId("smaller").addEventListener("click", () => setZoom(zoom / 1.25));
  byId("larger").addEventListener("click", () => setZoom(zoom * 1.25));
  byId("fit").addEventListener("click", () => setZoom(fitting().width));
  byId("whole").addEventListener("click", () => opened ? close() : showWhole());
  byId("search").addEventListener("input", search);
  byId("search").addEventListener("keydown", (event) => {
    const found = event.key === "Enter" ? search() : [];
    if (found.length) open(found[0].id);
  });
  document.addEventListener("keydown", (event) => { if (event.key === "Escape" && opened) close(); });
}

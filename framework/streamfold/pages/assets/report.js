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
  for (const section of data.sections ?? []) {
    const element = make("section", undefined, { id: section.id, "aria-labelledby": `${section.id}-title` });
    element.append(make("h2", section.title, { id: `${section.id}-title` }));
    for (const note of section.notes) element.append(make("p", note));
    for (const each of section.tables) element.append(table(each, tables++));
    byId("report").append(element);
    links.push([section.id, section.title]);
  }
}

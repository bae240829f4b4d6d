// A dashboard: a chart for each graph, with its lines, and the alarms that would stand below.
const CHART = { width: 560, height: 190, x: 52, right: 44, top: 10, bottom: 24 };
const COLOURS = 8, TICKS = 4;

function startDashboard() {
  const { application, notes, boards } = data.dashboard;
  byId("title").textContent = `Dashboard of ${application}`;
  byId("summary").textContent = notes.join(" ");
  for (const { name, widgets } of boards) {
    const element = make("section", undefined, { id: name, "aria-labelledby": `${name}-title` });
    const charts = make("div", undefined, { class: "charts" }), alarms = make("ul", undefined, { class: "alarms" });
    charts.append(...widgets.filter((widget) => widget.lines).map(chart));
    alarms.append(...widgets.filter((widget) => widget.alarms).map(listed));
    element.append(make("h2", name, { id: `${name}-title` }), charts, alarms);
    byId("boards").append(element);
    links.push([name, name]);
  }
}

function listed({ title, alarms }) {
  const entry = make("li"), list = make("ul");
  list.append(...alarms.map((name) => make("li", name)));
  entry.append(make("h3", title), list);
  return entry;
}

function chart(widget) {
  const [what, good] = widget.title.split(/ (?=Good: )/), holder = make("figure");
  const caption = make("figcaption");
  caption.append(make("strong", what), make("span", good ?? ""));
  holder.append(caption);
  if (!widget.lines.length) {
    holder.append(make("p", "No data in this replay.", { class: "no-data" }));
    return holder;
  }
  const svg = draw("svg", { viewBox: `0 0 ${CHART.width} ${CHART.height}`, role: "img",
    "aria-label": `${widget.title} ${widget.lines.map(figures).join("; ")}` });
  const tops = [false, true].map((right) => top(widget, right));
  axis(svg, tops[0], CHART.x - 6, "end");
  if (widget.lines.some((line) => line.right)) axis(svg, tops[1], CHART.width - CHART.right + 6, "start");
  times(svg, widget);
  for (const value of widget.good.filter((each) => each <= tops[0])) {
    const y = heightOf(value, tops[0]);
    svg.append(draw("line", { class: "good", x1: CHART.x, x2: CHART.width - CHART.right, y1: y, y2: y }));
  }
  if (widget.stacked) stack(svg, widget, tops[0]);
  else widget.lines.forEach((line, at) => polyline(svg, widget, line, at, tops[line.right ? 1 : 0]));
  const list = make("ul", undefined, { class: "lines" });
  widget.lines.forEach((line, at) => {
    const entry = make("li");
    entry.append(make("span", undefined, { class: `swatch colour-${at % COLOURS}`, "aria-hidden": "true" }),
      figures(line));
    list.append(entry);
  });
  holder.append(svg, list);
  return holder;
}

const present = (line) => line.values.filter((value) => value !== null);
const figures = (line) => `${line.label}: most ${short(Math.max(...present(line)))}, last ${short(present(line).at(-1))}`;
function short(value) {
  if (value === 0) return "0";
  const size = Math.abs(value);
  if (size < 0.001) return value.toExponential(1).replace(".0e", "e"); // a tick has room for seven letters
  return size >= 1000 ? value.toLocaleString("en", { maximumFractionDigits: 0 }) : String(Number(value.toPrecision(3)));
}

function top(widget, right) {
  const lines = widget.lines.filter((line) => line.right === right);
  const values = widget.stacked ? sums(widget) : lines.flatMap(present);
  const most = Math.max(0, ...values), good = right ? [] : widget.good.filter((value) => value <= most * 4);
  return nice(Math.max(most, ...good) || 1);
}
function sums(widget) {
  return widget.lines[0].values.map((_, at) => widget.lines.reduce((sum, line) => sum + (line.values[at] ?? 0), 0));
}
function nice(value) {
  const unit = 10 ** Math.floor(Math.log10(value));
  return [1, 2, 2.5, 5, 10].map((step) => step * unit).find((each) => each >= value);
}

const heightOf = (value, most) =>
  CHART.height - CHART.bottom - (Math.max(0, value) / most) * (CHART.height - CHART.bottom - CHART.top);
function acrossOf(widget, at) {
  const count = widget.lines[0].values.length;
  return CHART.x + ((at + 0.5) / count) * (CHART.width - CHART.x - CHART.right);
}

function axis(svg, most, x, anchor) {
  for (let tick = 0; tick <= TICKS; tick += 1) {
    const value = (most * tick) / TICKS, y = heightOf(value, most);
    if (anchor === "end") svg.append(draw("line", { class: "grid", x1: CHART.x, x2: CHART.width - CHART.right, y1: y,
      y2: y }));
    svg.append(draw("text", { class: "tick", x, y: y + 4, "text-anchor": anchor }, short(value)));
  }
}
function times(svg, widget) {
  const count = widget.lines[0].values.length, y = CHART.height - 6;
  const shown = widget.seconds >= 86400 ? 10 : 16;
  for (const [at, anchor] of count > 1 ? [[0, "start"], [count - 1, "end"]] : [[0, "middle"]]) {
    const text = new Date((widget.begin + at * widget.seconds) * 1000).toISOString().slice(0, shown).replace("T", " ");
    const x = count > 1 ? (at ? CHART.width - CHART.right : CHART.x) : acrossOf(widget, 0);
    svg.append(draw("text", { class: "tick", x, y, "text-anchor": anchor }, text));
  }
}

function polyline(svg, widget, line, number, most) {
  const points = line.values.map((value, at) => value === null ? null : [acrossOf(widget, at), heightOf(value, most)]);
  let path = "", drawing = false;
  for (const point of points) {
    if (point) path += `${drawing ? "L" : "M"}${point.map((each) => each.toFixed(1))}`;
    drawing = Boolean(point);
  }
  svg.append(draw("path", { class: `line colour-${number % COLOURS}${number < COLOURS ? "" : " again"}`, d: path }));
  const dots = points.length <= 40 ? points : points.filter((point, at) => !points[at - 1] && !points[at + 1]);
  for (const point of dots.filter(Boolean))
    svg.append(draw("circle", { class: `dot colour-${number % COLOURS}`, cx: point[0], cy: point[1], r: 2 }));
}

function stack(svg, widget, most) {
  const count = widget.lines[0].values.length, base = Array(count).fill(0);
  const width = Math.min(40, ((CHART.width - CHART.x - CHART.right) / count) * 0.7);
  widget.lines.forEach((line, number) => line.values.forEach((value, at) => {
    if (!value) return;
    const y = heightOf(base[at] + value, most), height = heightOf(base[at], most) - y;
    svg.append(draw("rect", { class: `bar colour-${number % COLOURS}`, x: acrossOf(widget, at) - width / 2, y, width,
      height }));
    base[at] += value;
  }));
}

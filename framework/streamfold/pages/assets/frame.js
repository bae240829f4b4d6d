const byId = (id) => document.getElementById(id);
const data = JSON.parse(byId("data").textContent);
const slug = (text) => text.replaceAll(" ", "-");

// Every text of the data becomes a text node: none of it is ever read as markup.
function make(name, text, attributes = {}) {
  return filled(document.createElement(name), text, attributes);
}
function draw(name, attributes, text) {
  // The name space of a drawing in the page: an address of it in this script would be the only one of the page.
  return filled(document.createElementNS(byId("drawing").namespaceURI, name), text, attributes);
}
function filled(element, text, attributes) {
  if (text !== undefined) element.textContent = text;
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  return element;
}

function setTheme(dark) {
  document.documentElement.dataset.theme = dark ? "dark" : "light";
  byId("theme").textContent = dark ? "Light" : "Dark";
}

const links = [];
function showLinks() {
  if (links.length > 1)
    byId("sections").replaceChildren(...links.map(([id, title]) => make("a", title, { href: `#${id}` })));
}

// Elements. Text is always text: nothing here parses markup.
const SVG = "http://www.w3.org/2000/svg";

function make(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...children.filter((child) => child !== null && child !== undefined));
  return node;
}

// Returns an HTML element. An attribute named `onclick` is a listener.
export function element(name, attributes = {}, ...children) {
  return make(document.createElement(name), attributes, children);
}

// Returns an SVG element.
export function shape(name, attributes = {}, ...children) {
  return make(document.createElementNS(SVG, name), attributes, children);
}

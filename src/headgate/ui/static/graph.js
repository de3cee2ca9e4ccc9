// The job graph: vertices are buttons above the lines of the edges, so that they have focus, and wrap and scale as text.
// The layout is computed once per graph and direction; figures are written into the existing elements.
//
// Keys: one vertex or edge has the tab stop. Along the flow the arrow keys move from a vertex to its edge to the next
// vertex, across it to the neighbour in the same layer.

import { h, setAttribute, svg } from "./format.js";
import { layOut } from "./layout.js";
import { edgeButton, vertexButton, writeEdge, writeVertex } from "./parts.js";

const VERTEX = { width: 188, height: 88 };
const LABEL = { width: 80, height: 56 };
const ABOVE = 34; // the part of a label's height above a horizontal line
const ACROSS = { size: VERTEX.width, breadth: VERTEX.height, gap: 100, spread: 26 }; // left to right
const BRANCHING = { ...ACROSS, gap: 124 }; // for graphs with lines that are not straight
const DOWN = { size: VERTEX.height, breadth: VERTEX.width, gap: 74, spread: 26 }; // top to bottom
const NARROW_PX = 640;
const SCALES = { least: 0.1, readable: 0.7, most: 2, step: 1.25 };
const MARGIN = 12;

export class Graph {
    #view; // scrolls
    #canvas; // is scaled
    #lines;
    #shown = null; // the view
    #shape = ""; // the graph and the direction of the drawing
    #vertices = new Map(); // id -> the parts of a vertex's button
    #edges = new Map();
    #down = false;
    #scale = 1;
    #extent = { width: 0, height: 0 };
    #fitted = true;
    #stop = null; // the key of the element with the tab stop
    #select;

    constructor(view, select) {
        this.#view = view;
        this.#select = select;
        this.#lines = svg("svg", { class: "lines", "aria-hidden": "true" });
        this.#canvas = h("div", { class: "canvas" }, this.#lines);
        view.append(this.#canvas);
        view.addEventListener("keydown", (event) => this.#key(event));
        view.addEventListener("wheel", (event) => this.#wheel(event), { passive: false });
        this.#dragging();
        new ResizeObserver(() => {
            if (this.#shown === null) return;
            this.update(...this.#shown);
            if (this.#fitted) this.fit(SCALES.readable);
        }).observe(view);
    }

    /** Draw the graph if it has changed, and write the figures of a view into it. */
    update(view, selected) {
        this.#shown = [view, selected];
        this.#draw(view.graph);
        const places = new Map(view.graph.vertices.map((one) => [one.id, one]));
        for (const figures of view.progress.vertices) {
            const parts = this.#vertices.get(figures.id);
            if (parts) writeVertex(parts, figures, places.get(figures.id));
        }
        const figures = new Map(view.progress.vertices.map((one) => [one.id, one]));
        const passing = new Map(view.edges.map((one) => [one.id, one]));
        const longest = new Map(); // backlog of each producer's edges: the longest one limits the producer
        for (const { id, producer } of view.graph.edges) {
            longest.set(producer, Math.max(longest.get(producer) ?? 1, passing.get(id)?.backlog ?? 0));
        }
        for (const edge of view.graph.edges) {
            const parts = this.#edges.get(edge.id);
            const held = (figures.get(edge.producer)?.back_pressured ?? 0) >= 0.3;
            if (parts) writeEdge(parts, passing.get(edge.id), held ? longest.get(edge.producer) / 2 : Infinity);
        }
        this.mark(selected);
    }

    /** Mark the selected vertex or edge. */
    mark(selected) {
        for (const [kind, all] of [
            ["vertex", this.#vertices],
            ["edge", this.#edges],
        ]) {
            for (const [id, parts] of all) {
                const on = selected !== null && selected.kind === kind && selected.id === id;
                setAttribute(parts.button, "aria-pressed", on);
                if (parts.line) parts.line.classList.toggle("selected", on);
                if (on && !this.#view.contains(document.activeElement)) this.#giveStop(`${kind} ${id}`);
            }
        }
    }

    /** Scale the graph to the window; without a click only if its text stays readable. */
    fit(least = SCALES.least) {
        const { width, height } = this.#extent;
        if (width === 0) return;
        const room = { width: this.#view.clientWidth, height: this.#view.clientHeight };
        const scale = Math.min(1, room.width / width, this.#down ? 1 : room.height / height);
        this.#setScale(Math.max(scale, least));
        this.#fitted = true;
    }

    zoom(by) {
        const scale = Math.min(SCALES.most, Math.max(SCALES.least, this.#scale * by));
        const middle = {
            x: (this.#view.scrollLeft + this.#view.clientWidth / 2) / this.#scale,
            y: (this.#view.scrollTop + this.#view.clientHeight / 2) / this.#scale,
        };
        this.#setScale(scale);
        this.#view.scrollLeft = middle.x * scale - this.#view.clientWidth / 2;
        this.#view.scrollTop = middle.y * scale - this.#view.clientHeight / 2;
        this.#fitted = false;
    }

    #setScale(scale) {
        this.#scale = scale;
        const { width, height } = this.#extent;
        this.#canvas.style.width = `${width}px`;
        this.#canvas.style.height = `${height}px`;
        this.#canvas.style.transform = `scale(${scale})`;
        // The browser does not resize a scaled canvas; the margins compensate the difference.
        this.#canvas.style.marginRight = `${width * (scale - 1)}px`;
        this.#canvas.style.marginBottom = `${height * (scale - 1)}px`;
        this.#canvas.style.marginLeft = `${Math.max(0, (this.#view.clientWidth - width * scale) / 2)}px`;
        this.#view.classList.toggle("far", scale < 0.4);
    }

    #draw(graph) {
        const down = this.#view.clientWidth < NARROW_PX;
        const shape = `${down} ${JSON.stringify(graph)}`;
        if (shape === this.#shape) return;
        const held = this.#view.contains(document.activeElement) ? this.#stop : null;
        this.#shape = shape;
        this.#down = down;
        this.#vertices.clear();
        this.#edges.clear();
        let laid = layOut(graph, down ? DOWN : ACROSS);
        if (!down && [...laid.edges.values()].some(isBent)) laid = layOut(graph, BRANCHING);
        const at = (along, across) =>
            down ? { x: across + MARGIN, y: along + MARGIN } : { x: along + MARGIN, y: across + MARGIN };
        const corner = at(laid.length, laid.breadth);
        this.#extent = { width: corner.x + MARGIN, height: corner.y + MARGIN };
        this.#view.style.setProperty("--graph-height", `${this.#extent.height}px`);
        setAttribute(this.#lines, "width", this.#extent.width);
        setAttribute(this.#lines, "height", this.#extent.height);
        this.#lines.replaceChildren(arrowHeads());
        const buttons = [];
        for (const one of graph.vertices) {
            const node = laid.vertices.get(one.id);
            const size = down ? DOWN : ACROSS;
            const corner = at(node.along, node.across - size.breadth / 2);
            const parts = vertexButton(one, () => this.#select({ kind: "vertex", id: one.id }));
            Object.assign(parts.button.style, pixels(corner, VERTEX));
            parts.key = `vertex ${one.id}`;
            parts.middle = { x: corner.x + VERTEX.width / 2, y: corner.y + VERTEX.height / 2 };
            parts.layer = node.layer * 2;
            this.#vertices.set(one.id, parts);
            buttons.push(parts.button);
        }
        for (const [edge, middle] of this.#labelPlaces(graph, laid, at)) {
            const choose = () => this.#select({ kind: "edge", id: edge.id });
            const parts = edgeButton(edge, graph, choose);
            const bent = isBent(laid.edges.get(edge.id));
            // Beside a vertical line, around a horizontal one, and above the others.
            const corner =
                down && !bent
                    ? { x: middle.x + 8, y: middle.y - LABEL.height / 2 }
                    : { x: middle.x - LABEL.width / 2, y: middle.y - (bent ? LABEL.height / 2 : ABOVE) };
            parts.button.classList.toggle("bent", bent);
            Object.assign(parts.button.style, pixels(corner, LABEL));
            parts.key = `edge ${edge.id}`;
            parts.middle = middle;
            parts.layer = laid.vertices.get(edge.producer).layer * 2 + 1;
            parts.ends = [edge.producer, edge.consumer];
            const path = curve(
                laid.edges.get(edge.id).map((point) => at(point.along, point.across)),
                down,
            );
            parts.line = svg("path", { class: "line", d: path, "marker-end": "url(#arrow)" });
            this.#lines.append(svg("path", { class: "reach", d: path, onclick: choose }), parts.line);
            this.#edges.set(edge.id, parts);
            buttons.push(parts.button);
        }
        this.#canvas.replaceChildren(this.#lines, ...buttons);
        this.#giveStop(held ?? this.#stop ?? `vertex ${graph.vertices[0]?.id}`);
        if (held) this.#find(held)?.button.focus();
        this.fit(SCALES.readable);
    }

    /** The middle of each edge's label; labels between the same two layers do not overlap. */
    #labelPlaces(graph, laid, at) {
        const places = [];
        for (const edge of graph.edges) {
            const points = laid.edges.get(edge.id);
            if (!points) continue;
            const [a, b] = points.length > 2 ? [points[1], points[2]] : points;
            places.push([edge, { along: (a.along + b.along) / 2, across: (a.across + b.across) / 2 }]);
        }
        const room = (this.#down ? LABEL.width : LABEL.height) + 4;
        for (const row of Map.groupBy(places, ([, place]) => place.along).values()) {
            row.sort(([, a], [, b]) => a.across - b.across);
            for (let i = 1; i < row.length; i += 1) {
                const [before, here] = [row[i - 1][1], row[i][1]];
                here.across = Math.max(here.across, before.across + room);
            }
        }
        return places.map(([edge, place]) => [edge, at(place.along, place.across)]);
    }

    #all() {
        return [...this.#vertices.values(), ...this.#edges.values()];
    }

    #find(key) {
        return this.#all().find((parts) => parts.key === key);
    }

    #giveStop(key) {
        const next = this.#find(key) ?? this.#all()[0];
        if (!next) return;
        for (const parts of this.#all()) setAttribute(parts.button, "tabindex", parts === next ? 0 : -1);
        this.#stop = next.key;
    }

    #key(event) {
        const here = this.#all().find((parts) => parts.button === document.activeElement);
        if (!here || event.ctrlKey || event.altKey || event.metaKey) return;
        const [forth, back, next, last] = this.#down
            ? ["ArrowDown", "ArrowUp", "ArrowRight", "ArrowLeft"]
            : ["ArrowRight", "ArrowLeft", "ArrowDown", "ArrowUp"];
        let goal = null;
        if (event.key === forth) goal = this.#neighbour(here, 1);
        else if (event.key === back) goal = this.#neighbour(here, -1);
        else if (event.key === next) goal = this.#beside(here, 1);
        else if (event.key === last) goal = this.#beside(here, -1);
        else if (event.key === "Home") goal = this.#vertices.values().next().value;
        else if (event.key === "End") goal = [...this.#vertices.values()].at(-1);
        else return;
        event.preventDefault();
        if (!goal) return;
        this.#giveStop(goal.key);
        goal.button.focus();
    }

    /** From a vertex to one of its edges, from an edge to the vertex at its end. */
    #neighbour(here, way) {
        if (here.ends) return this.#vertices.get(here.ends[way > 0 ? 1 : 0]);
        const id = Number(here.key.split(" ")[1]);
        const edges = [...this.#edges.values()].filter((one) => one.ends[way > 0 ? 0 : 1] === id);
        return nearest(here, edges);
    }

    #beside(here, way) {
        const side = (parts) => (this.#down ? parts.middle.x : parts.middle.y);
        const there = this.#all().filter((one) => one.layer === here.layer && (side(one) - side(here)) * way > 0);
        return nearest(here, there);
    }

    #wheel(event) {
        if (!event.ctrlKey) return;
        event.preventDefault();
        this.zoom(event.deltaY < 0 ? SCALES.step : 1 / SCALES.step);
    }

    /** A mouse drags the background; a touch screen scrolls without this. */
    #dragging() {
        let from = null;
        this.#view.addEventListener("pointerdown", (event) => {
            if (event.pointerType !== "mouse" || event.button !== 0 || event.target.closest("button, .reach")) return;
            from = { x: event.clientX + this.#view.scrollLeft, y: event.clientY + this.#view.scrollTop };
            this.#view.setPointerCapture(event.pointerId);
        });
        this.#view.addEventListener("pointermove", (event) => {
            if (from === null) return;
            this.#view.scrollLeft = from.x - event.clientX;
            this.#view.scrollTop = from.y - event.clientY;
        });
        for (const end of ["pointerup", "pointercancel"]) this.#view.addEventListener(end, () => (from = null));
    }
}

function isBent(points) {
    return points.some((point) => Math.abs(point.across - points[0].across) > 6);
}

function nearest(here, others) {
    const far = (one) => Math.abs(one.middle.x - here.middle.x) + Math.abs(one.middle.y - here.middle.y);
    return others.reduce((best, one) => (best === null || far(one) < far(best) ? one : best), null);
}

function pixels(corner, size) {
    return { left: `${corner.x}px`, top: `${corner.y}px`, width: `${size.width}px`, height: `${size.height}px` };
}

/** A line through points that leaves and enters along the flow. */
function curve(points, down) {
    let path = `M${points[0].x} ${points[0].y}`;
    for (let i = 1; i < points.length; i += 1) {
        const [a, b] = [points[i - 1], points[i]];
        const [mx, my] = [(a.x + b.x) / 2, (a.y + b.y) / 2];
        path += down ? `C${a.x} ${my} ${b.x} ${my} ${b.x} ${b.y}` : `C${mx} ${a.y} ${mx} ${b.y} ${b.x} ${b.y}`;
    }
    return path;
}

function arrowHeads() {
    const head = svg("path", { d: "M0 0L8 4L0 8z", class: "arrow" });
    return svg(
        "defs",
        {},
        svg(
            "marker",
            {
                id: "arrow",
                viewBox: "0 0 8 8",
                refX: 8,
                refY: 4,
                markerWidth: 8,
                markerHeight: 8,
                markerUnits: "userSpaceOnUse",
                orient: "auto",
            },
            head,
        ),
    );
}

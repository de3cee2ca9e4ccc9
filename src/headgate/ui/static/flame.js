// Sampled stacks of a vertex's tasks: an icicle chart of functions below their operators, and a table of the functions
// with the most samples.

import { axis, Chart, colours, plain } from "./charts.js";
import { announce, clock, h, percent, setText } from "./format.js";
import { shorten } from "./lines.js";
import { choice, Table } from "./tables.js";

const MOST_PARTS = 400; // of the drawing; the rest is in the table

export class Flame {
    #vertex;
    #ask;
    #pressure = null;
    #only = "work";
    #subtask = "all";
    #note;
    #button;
    #progress;
    #select;
    #body;
    #chart;
    #table;
    #name;

    /** `ask` samples and returns a pressure; null: this is a report, and cannot sample. */
    constructor(parent, { vertex, name, ask }) {
        this.#vertex = vertex;
        this.#name = name;
        this.#ask = ask;
        this.#note = h("span", { class: "muted" });
        this.#progress = h("progress", { max: 100, value: 0, "aria-label": "Sampling stacks", hidden: true });
        this.#button = h(
            "button",
            { type: "button", class: "primary", hidden: ask === null, onclick: () => this.#sample() },
            "Sample stacks",
        );
        this.#select = h("select", { "aria-label": "Stacks of subtask" });
        this.#select.addEventListener("change", () => {
            this.#subtask = this.#select.value;
            this.#show();
        });
        const samples = choice(
            "Samples",
            [
                ["work", "At work"],
                ["all", "All"],
            ],
            this.#only,
            (value) => {
                this.#only = value;
                this.#show();
            },
        );
        this.#body = h("div", { hidden: true }, h("div", { class: "tools" }, samples, this.#select));
        this.#chart = new Chart(this.#body, {
            label: "Flame graph: the table of hottest functions below has its figures",
            height: 260,
        });
        this.#table = new Table(this.#body, {
            caption: "Hottest functions",
            pageSize: 10,
            sort: 2,
            descending: true,
            empty: "No stack had a function of yours.",
            columns: [
                { label: "Function", value: (row) => row.name },
                { label: "Operator", value: (row) => row.operator },
                {
                    label: "Itself",
                    numeric: true,
                    hint: "share of samples in which it was innermost",
                    value: (row) => row.self,
                    text: (row) => percent(row.self),
                },
                {
                    label: "With callees",
                    numeric: true,
                    hint: "share of samples that had it",
                    value: (row) => row.total,
                    text: (row) => percent(row.total),
                },
            ],
        });
        parent.append(h("div", { class: "tools" }, this.#button, this.#progress, this.#note), this.#body);
        setText(
            this.#note,
            ask === null
                ? "No stacks were sampled."
                : "Samples the stacks of this job's tasks for a few seconds.",
        );
    }

    get pressure() {
        return this.#pressure;
    }

    update(pressure) {
        if (pressure === null || (this.#pressure !== null && pressure.at_ms === this.#pressure.at_ms)) return;
        this.#pressure = pressure;
        const mine = this.#mine();
        const tasks = mine ? mine.subtasks.map((one) => String(one.subtask)) : [];
        this.#subtask = "all";
        this.#select.replaceChildren(
            h("option", { value: "all" }, "all subtasks"),
            ...tasks.map((one) => h("option", { value: one }, `subtask ${one}`)),
        );
        this.#show();
    }

    /** Draw again, with new colours. */
    redraw() {
        if (this.#pressure) this.#show();
    }

    #mine() {
        return this.#pressure.vertices.find((one) => one.vertex === this.#vertex) ?? null;
    }

    async #sample() {
        const { promise, seconds } = this.#ask();
        const began = performance.now();
        this.#button.disabled = true;
        this.#progress.hidden = false;
        setText(this.#note, `Sampling for about ${Math.ceil(seconds)} s.`);
        const timer = setInterval(() => {
            this.#progress.value = Math.min(98, ((performance.now() - began) / (seconds * 1000)) * 100);
        }, 200);
        try {
            const pressure = await promise;
            announce("Stacks sampled.");
            this.#pressure = null;
            this.update(pressure);
        } catch (error) {
            setText(this.#note, `Not sampled: ${error.message}.`);
        } finally {
            clearInterval(timer);
            this.#button.disabled = false;
            this.#progress.hidden = true;
            setText(this.#button, "Sample again");
        }
    }

    #show() {
        const mine = this.#mine();
        this.#body.hidden = mine === null;
        if (mine === null) {
            setText(this.#note, "No worker sent samples of this vertex.");
            return;
        }
        const most = `at most ${percent(mine.ratio)} of a task's samples waited for an output buffer`;
        const level = `Back pressure ${mine.level.toUpperCase()}: ${most}.`;
        setText(this.#note, `${level} ${this.#pressure.samples} samples, ${clock(this.#pressure.at_ms)}.`);
        const tasks =
            this.#subtask === "all"
                ? mine.subtasks
                : mine.subtasks.filter((one) => String(one.subtask) === this.#subtask);
        const stacks = tasks.flatMap((one) => one.stacks);
        const tree = grow(stacks, this.#only, this.#name);
        this.#table.update(hottest(stacks, this.#only));
        this.#draw(tree);
    }

    #draw(parts) {
        const colour = colours();
        const kind = (one) => (one.back > one.count / 2 ? "back" : one.idle > one.count / 2 ? "idle" : "busy");
        const total = parts[0].count;
        const trace = {
            type: "icicle",
            ids: parts.map((one) => one.id),
            labels: parts.map((one) =>
                plain(`${shorten(one.name, 60)}  ${percent(total > 0 ? one.count / total : 0)}`),
            ),
            parents: parts.map((one) => one.parent),
            values: parts.map((one) => one.count),
            branchvalues: "total",
            sort: true,
            tiling: { orientation: "v" },
            pathbar: { visible: true, thickness: 20 },
            marker: { colors: parts.map((one) => colour[kind(one)]), line: { color: colour.surface, width: 1 } },
            textfont: { color: parts.map((one) => colour[`on-${kind(one)}`]), size: 11 },
            textinfo: "label",
            leaf: { opacity: 1 },
            hovertemplate: "%{label}<br>%{value} samples<extra></extra>",
        };
        const depth = Math.max(...parts.map((one) => one.depth)) + 1;
        this.#chart.resize(Math.min(520, 24 + depth * 26));
        this.#chart.draw([trace], {
            uniformtext: { minsize: 10, mode: "hide" },
            margin: { l: 0, r: 0, t: 0, b: 0 },
            showlegend: false,
            hovermode: "closest",
            height: Math.min(520, 24 + depth * 26),
            xaxis: axis({ visible: false }),
            yaxis: axis({ visible: false }),
        });
    }
}

function weigh(stack, only) {
    return only === "all" ? stack.count : Math.max(0, stack.count - stack.idle - stack.back_pressured);
}

/** Stacks as a tree: vertex, operator, then frames from the outermost in. The root is first. */
function grow(stacks, only, name) {
    const root = { id: "0", parent: "", name, count: 0, idle: 0, back: 0, depth: 0, below: new Map() };
    const add = (node, stack, weight) => {
        node.count += weight;
        if (only === "all") {
            node.idle += stack.idle;
            node.back += stack.back_pressured;
        }
    };
    for (const stack of stacks) {
        const weight = weigh(stack, only);
        if (weight === 0) continue;
        add(root, stack, weight);
        let node = root;
        for (const step of [stack.operator || "headgate", ...stack.frames]) {
            if (!node.below.has(step)) {
                const id = `${node.id}/${node.below.size}`;
                node.below.set(step, {
                    id,
                    parent: node.id,
                    name: step,
                    count: 0,
                    idle: 0,
                    back: 0,
                    depth: node.depth + 1,
                    below: new Map(),
                });
            }
            node = node.below.get(step);
            add(node, stack, weight);
        }
    }
    const parts = [];
    const open = [root];
    while (open.length > 0 && parts.length < MOST_PARTS) {
        open.sort((a, b) => b.count - a.count);
        const node = open.shift();
        parts.push(node);
        open.push(...node.below.values());
    }
    return parts;
}

/** Functions with their shares of the samples: of themselves, and with the functions they call. */
function hottest(stacks, only) {
    const rows = new Map();
    let all = 0;
    for (const stack of stacks) {
        const weight = weigh(stack, only);
        all += weight;
        for (const name of new Set(stack.frames)) {
            const key = `${stack.operator}\n${name}`;
            if (!rows.has(key)) rows.set(key, { name, operator: stack.operator, self: 0, total: 0 });
            const row = rows.get(key);
            row.total += weight;
            if (stack.frames.at(-1) === name) row.self += weight;
        }
    }
    const found = [...rows.values()].filter((row) => row.total > 0);
    for (const row of found) {
        row.self /= all;
        row.total /= all;
    }
    return found;
}

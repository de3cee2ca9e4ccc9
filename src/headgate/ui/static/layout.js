// The layout of a graph: layers from the sources on, an order within each layer with few crossings, and positions near
// those of the neighbours. Pure and deterministic.
//
// `along` is the direction of the data (left to right, or top to bottom on a narrow screen), `across` the other one.
// An edge over several layers has a bend in every layer between: no edge crosses a vertex.

const SWEEPS = 8;

/** {vertices: Map(id -> {along, across, layer}), edges: Map(id -> [{along, across}...]), length, breadth} */
export function layOut(graph, { size, breadth, gap, spread }) {
    const nodes = new Map(
        graph.vertices.map((one) => [one.id, { id: one.id, layer: 0, before: [], after: [], bend: false }]),
    );
    const edges = graph.edges.filter((one) => nodes.has(one.producer) && nodes.has(one.consumer));
    setLayers(nodes, edges);
    const chains = addBends(nodes, edges);
    const layers = [];
    for (const node of nodes.values()) (layers[node.layer] ??= []).push(node);
    order(layers);
    place(layers, breadth, spread);
    const step = size + gap;
    for (const node of nodes.values()) node.along = node.layer * step;
    return {
        vertices: new Map([...nodes.values()].filter((one) => !one.bend).map((one) => [one.id, one])),
        edges: new Map(chains.map(([edge, chain]) => [edge.id, route(chain, size)])),
        length: layers.length * step - gap,
        breadth: Math.max(breadth, ...[...nodes.values()].map((one) => one.across + breadth / 2)),
    };
}

/** The longest path from a source; a graph with a cycle has layers, too. */
function setLayers(nodes, edges) {
    const open = new Map([...nodes.keys()].map((id) => [id, 0]));
    for (const edge of edges) open.set(edge.consumer, open.get(edge.consumer) + 1);
    const ready = [...nodes.keys()].filter((id) => open.get(id) === 0);
    const outputs = Map.groupBy(edges, (one) => one.producer);
    while (ready.length > 0) {
        const id = ready.shift();
        for (const edge of outputs.get(id) ?? []) {
            const next = nodes.get(edge.consumer);
            next.layer = Math.max(next.layer, nodes.get(id).layer + 1);
            open.set(edge.consumer, open.get(edge.consumer) - 1);
            if (open.get(edge.consumer) === 0) ready.push(edge.consumer);
        }
    }
    // A source is in the layer before its first reader: short edges are easier to follow.
    for (const node of nodes.values()) {
        const next = (outputs.get(node.id) ?? []).map((edge) => nodes.get(edge.consumer).layer);
        if (node.layer === 0 && next.length > 0) node.layer = Math.max(0, Math.min(...next) - 1);
    }
}

/** Chains of nodes from producer to consumer, a bend in each layer between. */
function addBends(nodes, edges) {
    const chains = [];
    for (const edge of edges) {
        let last = nodes.get(edge.producer);
        const end = nodes.get(edge.consumer);
        const chain = [last];
        for (let layer = last.layer + 1; layer < end.layer; layer += 1) {
            const bend = { id: `${edge.id}/${layer}`, layer, before: [last], after: [], bend: true };
            last.after.push(bend);
            nodes.set(bend.id, bend);
            chain.push(bend);
            last = bend;
        }
        last.after.push(end);
        end.before.push(last);
        chain.push(end);
        chains.push([edge, chain]);
    }
    return chains;
}

/** Reduce crossings: order each layer by the mean position of its neighbours, forwards and backwards. */
function order(layers) {
    const number = (layer) => layer.forEach((node, index) => (node.index = index));
    const sort = (layer, neighbours) => {
        for (const node of layer) node.wish = mean(node[neighbours].map((one) => one.index)) ?? node.index;
        layer.sort((a, b) => a.wish - b.wish || a.index - b.index);
        number(layer);
    };
    layers.forEach(number);
    for (let sweep = 0; sweep < SWEEPS; sweep += 1) {
        for (const layer of layers) sort(layer, "before");
        for (const layer of layers.toReversed()) sort(layer, "after");
    }
}

/** Positions across: as near to the neighbours as the layer allows, forwards and backwards. */
function place(layers, breadth, spread) {
    const room = (node) => (node.bend ? breadth / 3 : breadth) + spread;
    for (const layer of layers) {
        let at = 0;
        for (const node of layer) {
            node.across = at + room(node) / 2;
            at += room(node);
        }
    }
    for (let sweep = 0; sweep < SWEEPS; sweep += 1) {
        const back = sweep % 2 === 1;
        for (const layer of back ? layers.toReversed() : layers) {
            const wishes = layer.map(
                (node) => mean((back ? node.after : node.before).map((one) => one.across)) ?? node.across,
            );
            settle(layer, wishes, room);
        }
    }
    const least = Math.min(...layers.flat().map((node) => node.across - (node.bend ? 0 : breadth / 2)));
    for (const node of layers.flat()) node.across -= least;
}

/** Minimize the squares of |position - wish| without changing the order: nodes that collide move together. */
function settle(layer, wishes, room) {
    const groups = [];
    let offset = 0;
    layer.forEach((node, index) => {
        if (index > 0) offset += (room(layer[index - 1]) + room(node)) / 2;
        let group = { sum: wishes[index] - offset, members: [[node, offset]] };
        while (groups.length > 0 && average(groups.at(-1)) > average(group)) {
            const last = groups.pop();
            group = { sum: last.sum + group.sum, members: last.members.concat(group.members) };
        }
        groups.push(group);
    });
    for (const group of groups) for (const [node, by] of group.members) node.across = average(group) + by;
}

function average(group) {
    return group.sum / group.members.length;
}

function mean(values) {
    return values.length === 0 ? null : values.reduce((sum, one) => sum + one, 0) / values.length;
}

/** The points of an edge: from its producer through the layers between to its consumer. */
function route(chain, size) {
    const points = [{ along: chain[0].along + size, across: chain[0].across }];
    for (const bend of chain.slice(1, -1)) {
        points.push({ along: bend.along, across: bend.across }, { along: bend.along + size, across: bend.across });
    }
    points.push({ along: chain.at(-1).along, across: chain.at(-1).across });
    return points;
}

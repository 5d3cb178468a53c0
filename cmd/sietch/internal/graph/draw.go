package graph

import (
	"slices"
	"strings"
)

// Drawing is a graph under way, from the newest commit down.
type Drawing struct {
	lanes []string // the commit that each lane waits for; "" is a gap
	moves []string // lines that lead lanes to their new columns, still to be drawn
	root  int      // 1 + the column of the commit before, when that was a root
}

// Commit starts the next commit and returns what stands before its first line.
// Lines left over from the one before must have been drawn, see [Drawing.Rest].
func (d *Drawing) Commit(n Node) string {
	at := slices.Index(d.lanes, n.ID)
	if at < 0 {
		if d.root == len(d.lanes)+1 { // right beneath a root it would look like its parent
			d.lanes = append(d.lanes, "")
		}
		at = len(d.lanes)
		d.lanes = append(d.lanes, n.ID)
	}
	cells := make([]string, len(d.lanes))
	for i, id := range d.lanes {
		cells[i] = "|"
		if id == "" {
			cells[i] = " "
		}
	}
	cells[at] = "*"
	d.root = 0
	if len(n.Parents) == 0 {
		d.root = at + 1
	}
	d.advance(at, n.Parents)
	return strings.Join(cells, " ")
}

// Next returns what stands before a further line of the same commit.
func (d *Drawing) Next() string {
	if len(d.moves) > 0 {
		line := d.moves[0]
		d.moves = d.moves[1:]
		return line
	}
	return strings.TrimRight(strings.Repeat("| ", len(d.lanes)), " ")
}

// Rest returns the lines that have to be drawn before the next commit.
func (d *Drawing) Rest() []string {
	rest := d.moves
	d.moves = nil
	return rest
}

// edge is a lane on its way from one column to another.
type edge struct{ from, to int }

// advance replaces the lane of a commit by those of its parents.
func (d *Drawing) advance(at int, parents []string) {
	next := slices.Clone(d.lanes)
	var edges []edge                   // those of the commit
	taken := false                     // the commit's own lane goes on with a parent
	apart := slices.Contains(next, "") // beside a gap even the own lane moves
	inserted := 0
	for _, p := range slices.Compact(slices.Clone(parents)) {
		switch q := slices.Index(next, p); {
		case q >= 0 && q < at && len(edges) > 0 && !taken:
			// Two edges to the left would be drawn as one.
			next[at], taken, apart = p, true, true
			edges = append(edges, edge{at, at})
		case q >= 0 && (q < at || taken):
			edges = append(edges, edge{at, q})
		case q > at:
			// The right lane is led here instead; see collapse.
			next[at], taken = p, true
			edges = append(edges, edge{at, at})
		case !taken:
			next[at], taken = p, true
			edges = append(edges, edge{at, at})
		default:
			inserted++
			next = slices.Insert(next, at+inserted, p)
			for i := range edges {
				if edges[i].to >= at+inserted {
					edges[i].to++
				}
			}
			edges = append(edges, edge{at, at + inserted})
		}
	}
	if !taken {
		next[at] = ""
	}
	for i, id := range d.lanes {
		switch {
		case id == "":
		case i < at:
			edges = append(edges, edge{i, i})
		case i > at:
			edges = append(edges, edge{i, i + inserted})
		}
	}
	// What goes to the right, or would not be seen apart from it, comes before
	// lanes close up.
	if apart || slices.ContainsFunc(edges, func(e edge) bool { return e.to > e.from }) {
		d.draw(edges)
		edges = nil
		for i, id := range next {
			if id != "" {
				edges = append(edges, edge{i, i})
			}
		}
	}
	d.lanes = collapse(next, edges)
	d.draw(edges)
}

// collapse closes the gaps in lanes and leads a lane into the one to its left
// that waits for the same commit. The edges, which end at the old columns, then
// end at the new ones.
func collapse(lanes []string, edges []edge) []string {
	var closed []string
	column := make([]int, len(lanes))
	for i, id := range lanes {
		if id == "" {
			continue
		}
		if column[i] = slices.Index(closed, id); column[i] < 0 {
			column[i] = len(closed)
			closed = append(closed, id)
		}
	}
	for i := range edges {
		edges[i].to = column[edges[i].to]
	}
	return closed
}

// draw adds the lines that lead every edge to its column. Edges move one column
// a line, between the columns, so that those that stay are seen to stay.
func (d *Drawing) draw(edges []edge) {
	for {
		width, moving := 0, false
		for _, e := range edges {
			width = max(width, 2*max(e.from, e.to)+1)
			moving = moving || e.from != e.to
		}
		if !moving {
			return
		}
		line := []byte(strings.Repeat(" ", width))
		for i, e := range edges {
			switch {
			case e.to < e.from:
				line[2*e.from-1] = '/'
				edges[i].from--
			case e.to > e.from:
				line[2*e.from+1] = '\\'
				edges[i].from++
			default:
				line[2*e.from] = '|'
			}
		}
		d.moves = append(d.moves, strings.TrimRight(string(line), " "))
	}
}

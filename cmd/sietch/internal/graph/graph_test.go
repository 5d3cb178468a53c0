package graph

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// parse reads "d: b c" lines, newest first.
func parse(text string) []Node {
	var nodes []Node
	for line := range strings.Lines(text) {
		if id, parents, ok := strings.Cut(strings.TrimSpace(line), ":"); ok {
			nodes = append(nodes, Node{id, strings.Fields(parents)})
		}
	}
	return nodes
}

// oneline draws nodes with their ids, as log --oneline --graph does.
func oneline(nodes []Node) string {
	var b strings.Builder
	var d Drawing
	for i, n := range nodes {
		b.WriteString(d.Commit(n) + " " + n.ID + "\n")
		if i < len(nodes)-1 {
			for _, rest := range d.Rest() {
				b.WriteString(rest + "\n")
			}
		}
	}
	return b.String()
}

func TestOneline(t *testing.T) {
	tests := []struct{ name, nodes, want string }{
		{"one line of history", "c: b\nb: a\na:\n", "* c\n* b\n* a\n"},
		{"a fork", "c: a\nb: a\na:\n", `
* c
| * b
|/
* a
`},
		{"four forks of one commit", "e: a\nd: a\nc: a\nb: a\na: r\nr:\n", `
* e
| * d
|/
| * c
|/
| * b
|/
* a
* r
`},
		{"a merge", "m: a b\na: r\nb: r\nr:\n", `
* m
|\
| * b
* | a
|/
* r
`},
		{"a merge beside another branch", "t: r\nm: a b\na: r\nb: r\nr:\n", `
* t
| * m
| |\
| | * b
| |/
|/|
| * a
|/
* r
`},
		{"a lane crosses another", "x: r\ny: s\nz: r s\ns: t\nr: t\nt:\n", `
* x
| * y
| | * z
| |/|
|/| |
| |/
| * s
* | r
|/
* t
`},
		{"roots that have nothing in common", "c: a\nd: b\na:\nb:\n", `
* c
* a
  * d
 /
* b
`},
		{"parents that are not shown", "b: x\na: y\n", `
* b
| * a
`},
		{"lanes close up after a root in the middle", "m: a b c\nc: z\nb:\na: z\nz:\n", `
* m
|\
| |\
| | * c
| * | b
|  /
* | a
|/
* z
`},
		{"a merge of a commit that has a lane already", "t: b\nm: a b\na: b\nb:\n", `
* t
| * m
|/|
| * a
|/
* b
`},
		{"three parents", "m: a b c\nc: r\nb: r\na: r\nr:\n", `
* m
|\
| |\
| | * c
| * | b
| |/
* | a
|/
* r
`},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got := oneline(Order(parse(tt.nodes)))
			if diff := cmp.Diff(strings.TrimPrefix(tt.want, "\n"), got); diff != "" {
				t.Errorf("(-want +got):\n%s\n%s", diff, got)
			}
		})
	}
}

func TestOrder(t *testing.T) {
	tests := []struct{ name, nodes, want string }{
		{"parents after children whatever their place", "a:\nb: a\nc: b\n", "c b a"},
		{"newest tip first, branches in one piece", "d: b\nc: a\nb: r\na: r\nr:\n", "d b c a r"},
		{"what a merge brought in, then what it was merged into", "m: a b\na: r\nb: r\nr:\n", "m b a r"},
		{"a parent that is not listed", "b: x\na: y\n", "b a"},
		{"listed twice", "b: a\nb: a\na:\n", "b a"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var got []string
			for _, n := range Order(parse(tt.nodes)) {
				got = append(got, n.ID)
			}
			if s := strings.Join(got, " "); s != tt.want {
				t.Errorf("got %s, want %s", s, tt.want)
			}
		})
	}
}

func TestNextGoesOnWithTheLanes(t *testing.T) {
	var d Drawing
	d.Commit(Node{"m", []string{"a", "b"}})
	got := []string{d.Next(), d.Next(), d.Next()}
	if diff := cmp.Diff([]string{`|\`, "| |", "| |"}, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if rest := d.Rest(); len(rest) != 0 {
		t.Errorf("lines left over: %q", rest)
	}
}

// TestDrawingCanBeReadBack draws random histories and follows the lines with
// the eyes, down from each commit: they must lead to its parents.
func TestDrawingCanBeReadBack(t *testing.T) {
	for seed := range uint64(400) {
		nodes := Order(history(rand.New(rand.NewPCG(seed, 1)), 4+int(seed%24)))
		drawn := oneline(nodes)
		for _, n := range nodes {
			want := slices.Compact(slices.Sorted(slices.Values(n.Parents)))
			if got := parentsSeen(t, drawn, n.ID); !slices.Equal(got, want) {
				t.Fatalf("seed %d: %s has the parents %v, seen are %v\n%s", seed, n.ID, want, got, drawn)
			}
		}
	}
}

// history is a random DAG, newest first, with some merges of two.
func history(r *rand.Rand, n int) []Node {
	nodes := make([]Node, n)
	for i := range nodes {
		node := Node{ID: fmt.Sprintf("c%d", n-i)}
		if older := n - i - 1; older > 0 && r.IntN(12) > 0 {
			for range 1 + r.IntN(4)/3 {
				node.Parents = append(node.Parents, fmt.Sprintf("c%d", 1+max(0, older-1-r.IntN(6))))
			}
		}
		slices.Sort(node.Parents)
		node.Parents = slices.Compact(node.Parents)
		r.Shuffle(len(node.Parents), func(i, j int) {
			node.Parents[i], node.Parents[j] = node.Parents[j], node.Parents[i]
		})
		nodes[i] = node
	}
	return nodes
}

// parentsSeen follows the lines that begin at a commit. A slanted line goes
// straight on where it crosses others.
func parentsSeen(t *testing.T, drawn, id string) []string {
	t.Helper()
	rows := strings.Split(strings.TrimSuffix(drawn, "\n"), "\n")
	at := func(row, col int) byte {
		if col < 0 || col >= len(rows[row]) {
			return ' '
		}
		return rows[row][col]
	}
	start := slices.IndexFunc(rows, func(r string) bool { return strings.Contains(r, "*") && strings.HasSuffix(r, " "+id) })
	if start < 0 {
		t.Fatalf("%s is not drawn:\n%s", id, drawn)
	}
	type eye struct{ row, lane, slant int }
	var eyes []eye
	begin := strings.IndexByte(rows[start], '*') / 2
	look := func(row, lane int) {
		if row >= len(rows) {
			return
		}
		if c := at(row, 2*lane); c == '|' || c == '*' {
			eyes = append(eyes, eye{row, lane, 0})
		}
		if at(row, 2*lane-1) == '/' {
			eyes = append(eyes, eye{row, lane - 1, -1})
		}
		if at(row, 2*lane+1) == '\\' {
			eyes = append(eyes, eye{row, lane + 1, +1})
		}
	}
	look(start+1, begin)
	seen := map[string]bool{}
	for len(eyes) > 0 {
		e := eyes[0]
		eyes = eyes[1:]
		if e.slant == 0 && at(e.row, 2*e.lane) == '*' {
			_, label, _ := strings.Cut(rows[e.row], "*")
			fields := strings.Fields(label)
			seen[fields[len(fields)-1]] = true
			continue
		}
		next := e.row + 1
		switch {
		case next >= len(rows):
		case e.slant < 0 && at(next, 2*e.lane-1) == '/':
			eyes = append(eyes, eye{next, e.lane - 1, -1})
		case e.slant > 0 && at(next, 2*e.lane+1) == '\\':
			eyes = append(eyes, eye{next, e.lane + 1, +1})
		case at(next, 2*e.lane) == '|' || at(next, 2*e.lane) == '*':
			eyes = append(eyes, eye{next, e.lane, 0})
		default:
			look(next, e.lane)
		}
	}
	var ids []string
	for s := range seen {
		ids = append(ids, s)
	}
	slices.Sort(ids)
	return ids
}

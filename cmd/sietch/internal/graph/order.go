package graph

// Node is one commit.
type Node struct {
	ID      string
	Parents []string
}

// Order sorts nodes so that each comes before its parents and every line of
// history stays in one piece. Among unrelated nodes the given order, newest
// first, decides. A node that is listed twice comes once. Parents that are not
// listed do not count.
func Order(nodes []Node) []Node {
	byID := make(map[string]int, len(nodes))
	children := make(map[string]int, len(nodes)) // still to come
	for i, n := range nodes {
		if _, twice := byID[n.ID]; !twice {
			byID[n.ID] = i
			for _, p := range n.Parents {
				children[p]++
			}
		}
	}
	// The stack makes it depth first: a branch is finished before the next.
	var stack []int
	for i := len(nodes) - 1; i >= 0; i-- {
		if children[nodes[i].ID] == 0 && byID[nodes[i].ID] == i {
			stack = append(stack, i)
		}
	}
	ordered := make([]Node, 0, len(byID))
	for len(stack) > 0 {
		n := nodes[stack[len(stack)-1]]
		stack = stack[:len(stack)-1]
		ordered = append(ordered, n)
		for _, p := range n.Parents {
			if children[p]--; children[p] == 0 {
				if i, listed := byID[p]; listed {
					stack = append(stack, i)
				}
			}
		}
	}
	return ordered
}

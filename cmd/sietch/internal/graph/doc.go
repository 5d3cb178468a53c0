// Package graph draws a commit DAG beside the lines of a log, as git does.
//
// It owns the order of the commits (children before parents, branches in one
// piece) and the lanes that lead from each to its parents. What is printed for
// a commit is the caller's. It is pure: no I/O, no state beyond a [Drawing],
// which belongs to one goroutine.
//
// # Lanes
//
// A lane is a column that waits for one commit. Two lanes never wait for the
// same one: where they would, the right one is led into the left one. A lane
// that changes its column moves one column a line, behind those that it meets:
//
//	| | * b
//	| |/     b has the same parent as the left lane,
//	|/|      and its lane is led behind the middle one
//
// Parents that are not in the log keep their lane to the end, so that commits
// that have nothing to do with each other do not look like parent and child.
package graph

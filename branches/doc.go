// Package branches is a content-addressed history of machines: a DAG of
// commits over shared pages, with branches, tags, HEADs and reflogs.
package branches

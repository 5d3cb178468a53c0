package main

import (
	"slices"
	"strings"
	"time"
)

// decoration is "(box@ -> main, tag: v1, other)": HEADs with the branch they are
// on, then tags, then branches.
func (e *env) decoration(refs []string) string {
	var heads, tags, branches []string
	onHead := map[string]bool{}
	for _, ref := range refs {
		head, branch, attached := strings.Cut(ref, " -> ")
		switch {
		case attached:
			heads = append(heads, e.paint(cyan, head+" -> ")+e.paint(green, branch))
			onHead[branch] = true
		case strings.HasSuffix(ref, "@"):
			heads = append(heads, e.paint(cyan, ref))
		case strings.HasPrefix(ref, "tag: "):
			tags = append(tags, e.paint(yellow, ref))
		default:
			branches = append(branches, ref)
		}
	}
	all := slices.Concat(heads, tags)
	for _, b := range branches {
		if !onHead[b] {
			all = append(all, e.paint(green, b))
		}
	}
	if len(all) == 0 {
		return ""
	}
	return e.paint(yellow, "(") + strings.Join(all, e.paint(yellow, ", ")) + e.paint(yellow, ")")
}

func labelsText(labels map[string]string) string {
	var all []string
	for k, v := range labels {
		all = append(all, k+"="+v)
	}
	slices.Sort(all)
	return strings.Join(all, ", ")
}

// dateText is a time as git writes it, where the user is.
func dateText(t time.Time) string { return t.Local().Format("Mon Jan 2 15:04:05 2006 -0700") }

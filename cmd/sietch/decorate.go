package main

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/sietch-dev/sietch/runtime"
)

// refNames tells what kind of thing a name on a commit is.
type refNames struct {
	branches map[string]runtime.Ref
	tags     map[string]runtime.Ref
}

// namesOf asks for the refs, if any commit has a name at all.
func namesOf(ctx context.Context, engine runtime.Engine, commits []runtime.Commit) (refNames, error) {
	var names refNames
	if !slices.ContainsFunc(commits, func(c runtime.Commit) bool { return len(c.Refs) > 0 }) {
		return names, nil
	}
	var err error
	if names.branches, err = refsByName(ctx, engine, runtime.BranchRef); err != nil {
		return names, err
	}
	names.tags, err = refsByName(ctx, engine, runtime.TagRef)
	return names, err
}

func refsByName(ctx context.Context, engine runtime.Engine, kind runtime.RefKind) (map[string]runtime.Ref, error) {
	refs, err := engine.ListRefs(ctx, kind)
	if err != nil {
		return nil, err
	}
	byName := make(map[string]runtime.Ref, len(refs))
	for _, r := range refs {
		byName[r.Name] = r
	}
	return byName, nil
}

// decoration is "(box@ -> main, tag: v1, other)": HEADs with the branch they are
// on, then tags, then branches.
func (e *env) decoration(c runtime.Commit, names refNames) string {
	var heads, tags, branches []string
	onHead := map[string]bool{}
	for _, ref := range c.Refs {
		sandbox, isHead := strings.CutSuffix(ref, "@")
		if !isHead {
			continue
		}
		head := e.paint(cyan, ref)
		for _, other := range c.Refs {
			if b, ok := names.branches[other]; ok && b.Sandbox == sandbox && b.Commit == c.ID {
				head, onHead[other] = e.paint(cyan, ref+" -> ")+e.paint(green, other), true
			}
		}
		heads = append(heads, head)
	}
	for _, ref := range slices.Compact(slices.Sorted(slices.Values(c.Refs))) {
		if strings.HasSuffix(ref, "@") {
			continue
		}
		tag, isTag := names.tags[ref]
		if isTag = isTag && tag.Commit == c.ID; isTag {
			tags = append(tags, e.paint(yellow, "tag: "+ref))
		}
		branch, isBranch := names.branches[ref]
		isBranch = isBranch && branch.Commit == c.ID
		// A name that is neither was moved since the log was read.
		if !onHead[ref] && (isBranch || !isTag) {
			branches = append(branches, e.paint(green, ref))
		}
	}
	all := slices.Concat(heads, tags, branches)
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

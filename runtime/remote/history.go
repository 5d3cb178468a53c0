package remote

import (
	"context"
	"fmt"
	"net/http"

	"github.com/sietch-dev/sietch/runtime"
	"github.com/sietch-dev/sietch/runtime/api/client"
	"github.com/sietch-dev/sietch/runtime/api/wire"
)

// Commit keeps a sandbox as it is now. Its author is who runs this process, not
// who runs the server.
func (e *Engine) Commit(ctx context.Context, r runtime.CommitRequest) (runtime.Commit, error) {
	if r.Author == "" {
		r.Author = runtime.DefaultAuthor()
	}
	return about[runtime.Commit](ctx, e, r.Name, func(ctx context.Context, with client.RequestEditorFn) (*http.Response, error) {
		return e.api.Commit(ctx, r.Name, nil, client.CommitRequest{Message: r.Message, Author: r.Author, Labels: r.Labels, DiskOnly: r.DiskOnly}, with)
	})
}

// Fork makes live copies; each is told as it answers.
func (e *Engine) Fork(ctx context.Context, r runtime.ForkRequest, each func(runtime.Fork)) ([]runtime.Fork, error) {
	return call(ctx, e, func(ctx context.Context, with client.RequestEditorFn) (*http.Response, error) {
		return e.api.Fork(ctx, nil, client.ForkRequest{From: r.From, N: r.N, Prefix: r.Prefix, Branch: r.Branch, Labels: r.Labels}, with)
	}, func(resp *http.Response) ([]runtime.Fork, error) {
		var made []runtime.Fork
		for f, err := range wire.Objects[runtime.Fork](resp, nil) {
			if err != nil {
				return made, err
			}
			made = append(made, f)
			if each != nil {
				each(f)
			}
		}
		return made, nil
	})
}

// Checkout puts a sandbox back to a commit.
func (e *Engine) Checkout(ctx context.Context, r runtime.CheckoutRequest) (runtime.Sandbox, error) {
	return about[runtime.Sandbox](ctx, e, r.Name, func(ctx context.Context, with client.RequestEditorFn) (*http.Response, error) {
		return e.api.Checkout(ctx, r.Name, nil, client.CheckoutRequest{Ref: r.Ref, NewBranch: r.NewBranch, NoSave: r.NoSave}, with)
	})
}

// Log gives history.
func (e *Engine) Log(ctx context.Context, r runtime.LogRequest) ([]runtime.Commit, error) {
	return ask[[]runtime.Commit](ctx, e, func(ctx context.Context, with client.RequestEditorFn) (*http.Response, error) {
		return e.api.Log(ctx, &client.LogParams{Ref: r.Ref, N: r.N}, with)
	})
}

// Show describes a commit.
func (e *Engine) Show(ctx context.Context, ref string) (runtime.Commit, error) {
	if err := word("ref", ref); err != nil {
		return runtime.Commit{}, err
	}
	return ask[runtime.Commit](ctx, e, func(ctx context.Context, with client.RequestEditorFn) (*http.Response, error) {
		return e.api.Show(ctx, ref, with)
	})
}

// Reflog tells where a sandbox has been.
func (e *Engine) Reflog(ctx context.Context, name string) ([]runtime.ReflogEntry, error) {
	return about[[]runtime.ReflogEntry](ctx, e, name, func(ctx context.Context, with client.RequestEditorFn) (*http.Response, error) {
		return e.api.Reflog(ctx, name, with)
	})
}

// ListRefs lists branches or tags.
func (e *Engine) ListRefs(ctx context.Context, kind runtime.RefKind) ([]runtime.Ref, error) {
	return ask[[]runtime.Ref](ctx, e, func(ctx context.Context, with client.RequestEditorFn) (*http.Response, error) {
		if kind == runtime.TagRef {
			return e.api.ListTags(ctx, with)
		}
		return e.api.ListBranches(ctx, with)
	})
}

// CreateRef makes a branch or tag.
func (e *Engine) CreateRef(ctx context.Context, kind runtime.RefKind, name, ref string) (runtime.Ref, error) {
	q := client.RefRequest{Name: name, Ref: ref}
	return ask[runtime.Ref](ctx, e, func(ctx context.Context, with client.RequestEditorFn) (*http.Response, error) {
		if kind == runtime.TagRef {
			return e.api.CreateTag(ctx, nil, q, with)
		}
		return e.api.CreateBranch(ctx, nil, q, with)
	})
}

// DeleteRef deletes a branch or tag.
func (e *Engine) DeleteRef(ctx context.Context, kind runtime.RefKind, name string) error {
	if err := word(string(kind), name); err != nil {
		return err
	}
	return tell(ctx, e, func(ctx context.Context, with client.RequestEditorFn) (*http.Response, error) {
		if kind == runtime.TagRef {
			return e.api.DeleteTag(ctx, name, nil, with)
		}
		return e.api.DeleteBranch(ctx, name, nil, with)
	})
}

// RenameBranch renames a branch.
func (e *Engine) RenameBranch(ctx context.Context, from, to string) error {
	if err := word("branch", from); err != nil {
		return err
	}
	return tell(ctx, e, func(ctx context.Context, with client.RequestEditorFn) (*http.Response, error) {
		return e.api.RenameBranch(ctx, from, nil, client.RenameRequest{Name: to}, with)
	})
}

// word refuses a name that no path of a request can hold; nothing is called so.
func word(kind, name string) error {
	if name == "" || unspeakable(name) {
		return &runtime.Error{Kind: runtime.ErrUsage, Message: fmt.Sprintf("%q is no name of %s %s", name, article(kind), kind)}
	}
	return nil
}

func article(noun string) string {
	if noun == "image" {
		return "an"
	}
	return "a"
}

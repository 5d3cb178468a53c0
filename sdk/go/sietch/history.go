package sietch

import (
	"context"
	"iter"

	"github.com/sietch-dev/sietch/runtime/api/client"
	"github.com/sietch-dev/sietch/runtime/api/wire"
)

// Commit keeps the sandbox as it is now; it goes on running.
func (s *Sandbox) Commit(ctx context.Context, message string) (Commit, error) {
	return s.CommitWith(ctx, CommitRequest{Message: message})
}

// CommitWith is Commit with all options.
func (s *Sandbox) CommitWith(ctx context.Context, q CommitRequest) (Commit, error) {
	return wire.Answer[Commit](s.c.api.Commit(ctx, s.Name, nil, q))
}

// Checkout puts the sandbox back to a commit, in place: same name, address and
// ports. What it was is committed first and stays reachable as NAME@{1}.
func (s *Sandbox) Checkout(ctx context.Context, ref string) (SandboxInfo, error) {
	return s.CheckoutWith(ctx, CheckoutRequest{Ref: ref})
}

// CheckoutWith is Checkout with all options.
func (s *Sandbox) CheckoutWith(ctx context.Context, q CheckoutRequest) (SandboxInfo, error) {
	return wire.Answer[SandboxInfo](s.c.api.Checkout(ctx, s.Name, nil, q))
}

// Fork makes live copies of its present state and waits for all of them. When
// some do not come up, the others stay and are returned with the error.
func (s *Sandbox) Fork(ctx context.Context, q ForkRequest) ([]*Sandbox, error) {
	q.From = s.Name
	return s.c.Fork(ctx, q)
}

// ForkEach is Fork that gives each copy as soon as it is ready.
func (s *Sandbox) ForkEach(ctx context.Context, q ForkRequest) iter.Seq2[*Sandbox, error] {
	q.From = s.Name
	return s.c.ForkEach(ctx, q)
}

// Fork is [Sandbox.Fork] of a sandbox or a commit: ForkRequest.From says which.
func (c *Client) Fork(ctx context.Context, q ForkRequest) ([]*Sandbox, error) {
	var copies []*Sandbox
	for box, err := range c.ForkEach(ctx, q) {
		if err != nil {
			return copies, err
		}
		copies = append(copies, box)
	}
	return copies, nil
}

// ForkEach is [Sandbox.ForkEach] of a sandbox or a commit. Copies that are not
// ready when the caller stops are not made.
func (c *Client) ForkEach(ctx context.Context, q ForkRequest) iter.Seq2[*Sandbox, error] {
	return func(yield func(*Sandbox, error) bool) {
		for f, err := range wire.Objects[Fork](c.api.Fork(ctx, nil, q)) {
			var box *Sandbox
			if err == nil {
				box = &Sandbox{Name: f.Name, ReadyMs: f.ReadyMs, c: c}
			}
			if !yield(box, err) {
				return
			}
		}
	}
}

// Log gives the history behind its HEAD, newest first; n: at most so many, 0 for
// all.
func (s *Sandbox) Log(ctx context.Context, n int) ([]Commit, error) { return s.c.Log(ctx, s.Name, n) }

// Log gives the history of a REF, or with none that of every branch, tag and
// HEAD.
func (c *Client) Log(ctx context.Context, ref string, n int) ([]Commit, error) {
	return wire.Answer[[]Commit](c.api.Log(ctx, &client.LogParams{Ref: ref, N: n}))
}

// Show gives the commit that a REF names.
func (c *Client) Show(ctx context.Context, ref string) (Commit, error) {
	return wire.Answer[Commit](c.api.Show(ctx, ref))
}

// Reflog tells where its HEAD has been, the present first.
func (s *Sandbox) Reflog(ctx context.Context) ([]ReflogEntry, error) {
	return wire.Answer[[]ReflogEntry](s.c.api.Reflog(ctx, s.Name))
}

// Branch makes a branch at its HEAD.
func (s *Sandbox) Branch(ctx context.Context, name string) (Ref, error) {
	return wire.Answer[Ref](s.c.api.CreateBranch(ctx, nil, client.RefRequest{Name: name, Ref: s.Name}))
}

// Tag makes a tag at its HEAD.
func (s *Sandbox) Tag(ctx context.Context, name string) (Ref, error) {
	return wire.Answer[Ref](s.c.api.CreateTag(ctx, nil, client.RefRequest{Name: name, Ref: s.Name}))
}

// Branches gives all branches, by name.
func (c *Client) Branches(ctx context.Context) ([]Ref, error) {
	return wire.Answer[[]Ref](c.api.ListBranches(ctx))
}

// Tags gives all tags, by name.
func (c *Client) Tags(ctx context.Context) ([]Ref, error) {
	return wire.Answer[[]Ref](c.api.ListTags(ctx))
}

// DeleteBranch deletes a branch; its commits stay until gc.
func (c *Client) DeleteBranch(ctx context.Context, name string) error {
	return wire.Done(c.api.DeleteBranch(ctx, name, nil))
}

// DeleteTag deletes a tag.
func (c *Client) DeleteTag(ctx context.Context, name string) error {
	return wire.Done(c.api.DeleteTag(ctx, name, nil))
}

// Package undo keeps the way back of a verb made of several steps.
//
// It owns a stack of named steps that run last in first out, once, on a context
// that outlives the caller's: taking things down matters most when that one is
// already cancelled. A Stack belongs to one goroutine.
package undo

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// Limit bounds the whole of Run.
const Limit = 30 * time.Second

// Stack of steps; the zero value is empty and ready.
type Stack struct {
	steps []step
}

type step struct {
	name string
	fn   func(context.Context) error
}

// Add pushes a step; name is a verb and its object ("remove network x").
func (s *Stack) Add(name string, fn func(context.Context) error) {
	s.steps = append(s.steps, step{name, fn})
}

// Release forgets every step: what was built is to stay.
func (s *Stack) Release() { s.steps = nil }

// Run takes everything down and empties the stack. It goes on after a step that
// fails and joins the errors.
func (s *Stack) Run(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), Limit)
	defer cancel()
	var errs []error
	for i := len(s.steps) - 1; i >= 0; i-- {
		if err := s.steps[i].fn(ctx); err != nil {
			errs = append(errs, fmt.Errorf("undo: %s: %w", s.steps[i].name, err))
		}
	}
	s.steps = nil
	return errors.Join(errs...)
}

// OnError runs the stack when *err is set and joins what goes wrong to it; for
// use in a defer.
func (s *Stack) OnError(ctx context.Context, err *error) {
	if *err == nil {
		return
	}
	if uerr := s.Run(ctx); uerr != nil {
		*err = errors.Join(*err, uerr)
	}
}

// Package fault gives errors a [Kind], which decides the exit code, a [Code], which names
// a runbook, and a hint, which tells the reader what to do about them.
package fault

import (
	"errors"
	"fmt"
	"io/fs"
	"syscall"
)

// Kind says how a command must end when an error reaches it. One switch in
// cmd/recast turns it into an exit code.
type Kind int

const (
	// Failed is every other error: unreachable, TLS, a task, a timeout.
	Failed Kind = iota
	// Config is bad usage or configuration; nothing was touched.
	Config
	// Refused is a refusal as unsafe: a gate, a mismatch, a missing privilege.
	Refused
	// Claimed says that another run holds the cluster's claim.
	Claimed
	// Interrupted says that the user stopped the run or declined to confirm.
	Interrupted
)

type kindError struct {
	error
	kind Kind
}

func (e *kindError) Unwrap() error { return e.error }

// As gives err a kind; the outermost kind in a chain counts. As(k, nil) is nil.
func As(k Kind, err error) error {
	if err == nil {
		return nil
	}
	return &kindError{error: err, kind: k}
}

func Configf(format string, args ...any) error { return As(Config, fmt.Errorf(format, args...)) }

func Refusedf(format string, args ...any) error { return As(Refused, fmt.Errorf(format, args...)) }

// KindOf returns the kind of err, Failed if it carries none.
func KindOf(err error) Kind {
	if e, ok := errors.AsType[*kindError](err); ok {
		return e.kind
	}
	return Failed
}

type hintError struct {
	error
	hint   string
	always bool // whatever the cause
}

func (e *hintError) Unwrap() error { return e.error }

// Prefix wraps err with what failed. Prefix(…, nil) is nil.
func Prefix(what string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s: %w", what, err)
}

// WithHint attaches a remedy to err; it is not part of the message.
// WithHint(nil, …) is nil.
func WithHint(err error, format string, args ...any) error {
	if err == nil {
		return nil
	}
	return &hintError{error: err, hint: fmt.Sprintf(format, args...)}
}

// WithNext is WithHint for what is to be done whatever the cause was.
func WithNext(err error, format string, args ...any) error {
	if err == nil {
		return nil
	}
	return &hintError{error: err, hint: fmt.Sprintf(format, args...), always: true}
}

// Hints returns every hint in err's tree, outermost first, without repeats. If this machine lacks
// something, hints about servers are left out: nothing was heard of them.
func Hints(err error) []string {
	var hints []string
	local := ofThisMachine(err)
	if local != "" {
		hints = append(hints, local)
	}
	seen := map[string]bool{}
	var walk func(error)
	walk = func(err error) {
		if err == nil {
			return
		}
		if h, ok := err.(*hintError); ok && !seen[h.hint] && (local == "" || h.always) {
			seen[h.hint] = true
			hints = append(hints, h.hint)
		}
		for _, e := range wrapped(err) {
			walk(e)
		}
	}
	walk(err)
	return hints
}

// ofThisMachine is what to do if err came about because this machine lacks something; "" if it did not.
func ofThisMachine(err error) string {
	is := func(list ...error) bool {
		for _, e := range list {
			if errors.Is(err, e) {
				return true
			}
		}
		return false
	}
	switch {
	case is(syscall.EMFILE, syscall.ENFILE):
		return "this machine lets recast open too few files: ulimit -n 1024, then run the same command again"
	case is(syscall.ENOSPC, syscall.EDQUOT):
		return "make room on this machine, where that file is (recast prune --only cache frees some), then run the same command again"
	case is(syscall.EROFS):
		return "recast has to write there: make that file system writable, or work in a copy of the directory; then run the same command again"
	}
	file, ok := errors.AsType[*fs.PathError](err)
	if ok && file.Op != "fork/exec" && errors.Is(file.Err, fs.ErrPermission) { // a program has its own hints
		return "this user may not use " + file.Path + ", or its directory: ls -ld shows whose it is; change that, or run recast as that user"
	}
	return ""
}

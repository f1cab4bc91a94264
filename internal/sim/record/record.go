// Package record records every request to any simulated server, of every protocol: a
// [Recorder] lets a test inspect, break or end each [Call].
package record

import (
	"maps"
	"slices"
	"sync"
)

// Call is one request at the server's side.
type Call struct {
	Seq      int               // 1, 2, … in order of arrival
	Proto    string            // "proxmox", "talos", "kubernetes", "factory", "registry"
	Target   string            // node name or address the request was sent to, where it matters
	Method   string            // "POST", or the gRPC method's full name
	Path     string            // URL path with query; empty for gRPC
	Params   map[string]string // form or JSON parameters of a Proxmox request; secrets left out
	User     string            // token ID or certificate subject; never a secret
	Agent    string            // the User-Agent header
	Mutation bool              // a non-GET request or a gRPC method that changes something
	Status   int               // status of a Proxmox server's answer; 0 until then, and for other protocols
	Late     bool              // it was held and is processed now: see Held
	Bytes    int64             // bytes of the answer's body so far; only for proxmox, and for kubernetes except watches
}

// Recorder is shared by all servers of one world. The zero value is not usable: see New.
type Recorder struct {
	Timeline Timeline // of the world
	slow     slowness

	keep int // see Keeping; 0: everything

	mu        sync.Mutex
	calls     []Call // the last ones, up to seq
	seq       int
	requests  map[string]int // by protocol
	mutations int
	before    func(Call) error
	after     func(Call)
}

// New makes a recorder without hooks that keeps every call.
func New() *Recorder { return Keeping(0) }

// Keeping makes a recorder that forgets all but the last n calls and delays, and only counts
// the others; 0 keeps everything.
func Keeping(n int) *Recorder {
	return &Recorder{keep: n, requests: map[string]int{}, Timeline: Timeline{keep: n}}
}

// trim drops the oldest of a list that is twice as long as what is to be kept; 0 keeps all.
// It copies, so that the dropped ones are freed.
func trim[T any](list []T, keep int) []T {
	if keep == 0 || len(list) < 2*keep {
		return list
	}
	return slices.Clone(list[len(list)-keep:])
}

// Hooks sets what runs around every call and replaces earlier hooks; nil removes one.
// before runs before the server acts: its error aborts the request, the connection breaks
// and nothing has happened. A *Held makes a Proxmox server process the request later.
// after runs when the server has acted and the answer is not yet sent; a test that cuts
// off the client there loses the answer.
func (r *Recorder) Hooks(before func(Call) error, after func(Call)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.before, r.after = before, after
}

// Begin records a call and runs the before hook. On an error the server breaks the
// connection instead of answering.
func (r *Recorder) Begin(c Call) (Call, error) {
	r.mu.Lock()
	r.seq++
	c.Seq = r.seq
	r.calls = trim(append(r.calls, c), r.keep)
	r.requests[c.Proto]++
	if c.Mutation {
		r.mutations++
	}
	before := r.before
	r.mu.Unlock()
	if before == nil {
		return c, nil
	}
	err := before(c)
	if held := AsHeld(err); held != nil && c.Proto != "proxmox" {
		held.End() // other servers drop it
	}
	return c, err
}

// Resume runs the before hook for a held call that is processed now. On an error the
// server drops the call.
func (r *Recorder) Resume(c Call) (Call, error) {
	c.Late = true
	r.mu.Lock()
	before := r.before
	r.mu.Unlock()
	if before == nil {
		return c, nil
	}
	return c, before(c)
}

// End tells the after hook that the server has acted on c, and keeps c's status.
func (r *Recorder) End(c Call) {
	r.mu.Lock()
	after := r.after
	if kept := r.kept(c); kept != nil {
		kept.Status = c.Status
	}
	r.mu.Unlock()
	if after != nil {
		after(c)
	}
}

// kept is the record of a call, nil if it was dropped; r.mu must be held.
func (r *Recorder) kept(c Call) *Call {
	i := c.Seq - 1 - r.dropped()
	if i < 0 {
		return nil
	}
	return &r.calls[i]
}

// dropped needs r.mu held.
func (r *Recorder) dropped() int { return r.seq - len(r.calls) }

// Calls returns a copy of the calls so far, without the dropped ones.
func (r *Recorder) Calls() []Call {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.calls)
}

// Dropped counts the calls that were forgotten: see Keeping.
func (r *Recorder) Dropped() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.dropped()
}

// Requests counts the calls so far by protocol.
func (r *Recorder) Requests() map[string]int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return maps.Clone(r.requests)
}

// Mutations counts the calls so far that change something.
func (r *Recorder) Mutations() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.mutations
}

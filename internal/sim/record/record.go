// Package record records every request to any simulated server, of every protocol: a
// [Recorder] lets a test inspect, break or end each [Call].
package record

import (
	"context"
	"errors"
	"maps"
	"net/http"
	"slices"
	"sync"
	"time"
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
	keep     int      // see Keeping; 0: everything

	mu        sync.Mutex
	slow      map[string]time.Time // until when the servers of a protocol are stalled
	slower    chan struct{}        // closed at the next change of slow
	calls     []Call               // the last ones, up to seq
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
	return &Recorder{keep: n, requests: map[string]int{}, slow: map[string]time.Time{}, Timeline: Timeline{keep: n}}
}

// trim drops the oldest of a list that is twice as long as what is to be kept; 0 keeps all.
// It copies, so that the dropped ones are freed.
func trim[T any](list []T, keep int) []T {
	if keep == 0 || len(list) < 2*keep {
		return list
	}
	return slices.Clone(list[len(list)-keep:])
}

// Hooks sets what runs around every call and replaces earlier hooks; nil removes one. before runs before the server
// acts: its error aborts the request, the connection breaks and nothing has happened. A *Held makes a Proxmox server
// process the request later. after runs when the server has acted and the answer is not yet sent; a test that cuts off
// the client there loses the answer.
func (r *Recorder) Hooks(before func(Call) error, after func(Call)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.before, r.after = before, after
}

// Begin records a call and runs the before hook. On an error the server breaks the connection instead of answering.
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

// Resume runs the before hook for a held call that is processed now. On an error the server drops the call.
func (r *Recorder) Resume(c Call) (Call, error) {
	c.Late = true
	r.mu.Lock()
	before := r.before
	r.mu.Unlock()
	if before != nil {
		return c, before(c)
	}
	return c, nil
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

// Held is what a before hook returns to make a Proxmox server delay a request, as busy
// workers do, or a proxy that timed out. The sender gets the Answer that Held was made
// with, or none, and does not learn what became of the request.
//
// Deliver makes the server process the request, with the permissions, locks, digests and protection of that moment. The
// hooks then run around the same call, with the same Seq and with Late set.
type Held struct {
	answer Answer
	due    chan struct{} // closed by Deliver
	over   chan struct{} // closed when the request was processed or dropped
	once   sync.Once
	ended  sync.Once
}

// Answer is what a proxy between client and server answers in the server's place.
type Answer struct {
	Status      int // 0: no answer, the connection breaks
	Reason      string
	ContentType string
	Body        string
	After       time.Duration // how long the sender waits for it
}

var (
	// NoAnswer is a connection that breaks at once.
	NoAnswer = Answer{}
	// GatewayTimeout is nginx's answer, in front of Proxmox, after its proxy_read_timeout, 60
	// s by default (ngx_http_special_response.c, ngx_http_error_504_page).
	GatewayTimeout = Answer{
		Status: 504, Reason: "Gateway Time-out", ContentType: "text/html", After: time.Minute,
		Body: "<html>\r\n<head><title>504 Gateway Time-out</title></head>\r\n<body>\r\n<center><h1>504 Gateway Time-out</h1></center>\r\n<hr><center>nginx</center>\r\n</body>\r\n</html>\r\n",
	}
	// BusyWorkers is pveproxy's answer after 30 s when all pvedaemon workers are busy: the
	// request stays in the queue of its socket (AnyEvent.pm, proxy_request).
	BusyWorkers = Answer{Status: 596, Reason: "Connection timed out", ContentType: "application/json;charset=UTF-8", After: 30 * time.Second}
)

// Hold makes a Held whose sender gets a.
func Hold(a Answer) *Held {
	return &Held{answer: a, due: make(chan struct{}), over: make(chan struct{})}
}

// Error implements error: a server that can't hold a request drops it.
func (h *Held) Error() string { return "the request is held" }

// Deliver makes the server process the request now. It returns when the server has done so or was closed; a worker that
// the request started may still run. The before hook of the same request must not call it.
func (h *Held) Deliver() {
	h.once.Do(func() { close(h.due) })
	<-h.over
}

// Answer is what the sender gets unless the request is processed earlier.
func (h *Held) Answer() Answer { return h.answer }

// Due is closed when the request is to be processed.
func (h *Held) Due() <-chan struct{} { return h.due }

// Over is closed when the request was processed or dropped.
func (h *Held) Over() <-chan struct{} { return h.over }

// End closes Over. The server that holds the request calls it.
func (h *Held) End() { h.ended.Do(func() { close(h.over) }) }

// AsHeld is the Held in a before hook's error; nil if there is none.
func AsHeld(err error) *Held {
	h, _ := errors.AsType[*Held](err)
	return h
}

// counted reports the size of an answer's body to the recorder.
type counted struct {
	http.ResponseWriter
	recorder *Recorder
	call     Call
}

// Counted is w with the bytes of the body counted for c's answer.
func (r *Recorder) Counted(w http.ResponseWriter, c Call) http.ResponseWriter {
	return counted{w, r, c}
}

func (w counted) Write(b []byte) (int, error) {
	w.recorder.mu.Lock()
	if kept := w.recorder.kept(w.call); kept != nil {
		kept.Bytes += int64(len(b))
	}
	w.recorder.mu.Unlock()
	return w.ResponseWriter.Write(b)
}

// Unwrap implements the interface of http.ResponseController.
func (w counted) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// Slow stalls the servers of a protocol ("proxmox", "talos", "kubernetes") for d: they process requests that arrive
// meanwhile only afterwards, unless the client has gone by then. 0 ends it.
func (r *Recorder) Slow(proto string, d time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.slow[proto] = time.Now().Add(d)
	if r.slower != nil {
		close(r.slower)
		r.slower = nil
	}
}

func (r *Recorder) slowness(proto string) (left time.Duration, changed <-chan struct{}) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if left = time.Until(r.slow[proto]); left <= 0 {
		return 0, nil
	}
	if r.slower == nil {
		r.slower = make(chan struct{})
	}
	return left, r.slower
}

// Await returns when a server of that protocol may process a request: at once unless it is
// stalled. The error is that of ctx, the client's.
func (r *Recorder) Await(ctx context.Context, proto string) error {
	for {
		left, changed := r.slowness(proto)
		if left == 0 {
			return nil
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-changed:
		case <-time.After(left):
		}
	}
}

// Delay is a time that the simulated world took for something.
type Delay struct {
	VMIDs    []int  // the VMs concerned; none if it concerns a node
	Node     string // of Kubernetes
	What     string // "boot", "qmmove"
	From, To time.Time
}

// Timeline is every delay of one world, or the last ones: see [Keeping]. The zero value is
// ready to use, and a nil Timeline keeps nothing.
type Timeline struct {
	keep   int
	mu     sync.Mutex
	delays []Delay
}

// Add keeps a finished delay.
func (t *Timeline) Add(d Delay) {
	if t == nil || !d.From.Before(d.To) {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.delays = trim(append(t.delays, d), t.keep)
}

// Delays returns a copy of all delays so far, in the order in which they ended.
func (t *Timeline) Delays() []Delay {
	if t == nil {
		return nil
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	return slices.Clone(t.delays)
}

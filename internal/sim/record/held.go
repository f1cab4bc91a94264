package record

import (
	"errors"
	"sync"
	"time"
)

// Held is what a before hook returns to have a Proxmox server carry a request
// out later than it was sent: as one whose workers are all busy does, or one behind a
// proxy that has stopped waiting. The sender gets the answer that Held was made
// with, or none, and does not learn what became of the request.
//
// Deliver makes the server carry it out, with the rights, locks, digests and
// protection of that moment. The hooks then run around the same call, with the
// same Seq and Late set.
type Held struct {
	answer Answer
	due    chan struct{} // closed by Deliver
	over   chan struct{} // closed when the request was carried out, or never will be
	once   sync.Once
	ended  sync.Once
}

// Answer is what somebody between a client and a server says in the server's place.
type Answer struct {
	Status      int // 0: nothing is said, the connection breaks
	Reason      string
	ContentType string
	Body        string
	After       time.Duration // how long the sender waits for it
}

var (
	// NoAnswer is a connection that breaks at once.
	NoAnswer = Answer{}
	// GatewayTimeout is what nginx in front of Proxmox says after its
	// proxy_read_timeout, of 60 s where nothing else is configured
	// (ngx_http_special_response.c, ngx_http_error_504_page).
	GatewayTimeout = Answer{
		Status: 504, Reason: "Gateway Time-out", ContentType: "text/html", After: time.Minute,
		Body: "<html>\r\n<head><title>504 Gateway Time-out</title></head>\r\n<body>\r\n<center><h1>504 Gateway Time-out</h1></center>\r\n<hr><center>nginx</center>\r\n</body>\r\n</html>\r\n",
	}
	// BusyWorkers is what pveproxy says after 30 s of a pvedaemon whose workers are
	// all at work: the request stays in the queue of its socket (AnyEvent.pm, proxy_request).
	BusyWorkers = Answer{Status: 596, Reason: "Connection timed out", ContentType: "application/json;charset=UTF-8", After: 30 * time.Second}
)

// Hold makes a request wait, and a the answer to it.
func Hold(a Answer) *Held {
	return &Held{answer: a, due: make(chan struct{}), over: make(chan struct{})}
}

// Error implements error: a server that can't hold a request drops it.
func (h *Held) Error() string { return "the request is held" }

// Deliver has the request carried out now, and returns when the server has acted
// on it, or has been closed. A worker that it has started may still be at work.
// Nobody may call it from the before hook of the same request.
func (h *Held) Deliver() {
	h.once.Do(func() { close(h.due) })
	<-h.over
}

// Answer is what the sender gets, unless the request is carried out earlier.
func (h *Held) Answer() Answer { return h.answer }

// Due is closed when the request is to be carried out.
func (h *Held) Due() <-chan struct{} { return h.due }

// Over is closed when the request was carried out, or never will be.
func (h *Held) Over() <-chan struct{} { return h.over }

// End is called by the server that holds the request, once nothing more comes of it.
func (h *Held) End() { h.ended.Do(func() { close(h.over) }) }

// AsHeld is the Held in the error of a before hook; nil if there is none.
func AsHeld(err error) *Held {
	if h, is := errors.AsType[*Held](err); is {
		return h
	}
	return nil
}

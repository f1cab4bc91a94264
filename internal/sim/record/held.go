package record

import (
	"errors"
	"sync"
	"time"
)

// Held is what a before hook returns to make a Proxmox server delay a request, as busy
// workers do, or a proxy that timed out. The sender gets the Answer that Held was made
// with, or none, and does not learn what became of the request.
//
// Deliver makes the server process the request, with the permissions, locks, digests and
// protection of that moment. The hooks then run around the same call, with the same Seq
// and with Late set.
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

// Deliver makes the server process the request now. It returns when the server has done so
// or was closed; a worker that the request started may still run. The before hook of the
// same request must not call it.
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
	if h, is := errors.AsType[*Held](err); is {
		return h
	}
	return nil
}

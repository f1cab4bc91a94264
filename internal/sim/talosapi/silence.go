package talosapi

import (
	"context"
	"net"
	"sync"

	"google.golang.org/grpc/status"
)

// Request is what Firmware.Silence decides about.
type Request struct {
	VMID     int
	Method   string // full gRPC name; "": a new connection
	Resource string // type of the resource, for reads of resources
}

// silences are the requests that machines do not answer.
type silences struct {
	mu     sync.Mutex
	silent func(Request) bool // nil: everything is answered
}

// Silence makes machines accept each request that silent selects and never answer it, like
// a hanging machined, or a hanging kernel behind an open port. silent sees every request
// that this Firmware's machines get and allow; nil ends the silence for later requests.
func (fw *Firmware) Silence(silent func(Request) bool) {
	fw.silences.mu.Lock()
	defer fw.silences.mu.Unlock()
	fw.silences.silent = silent
}

func (m *machine) silent(method, resource string) bool {
	if m.astray.Load() {
		return true
	}
	m.fw.silences.mu.Lock()
	defer m.fw.silences.mu.Unlock()
	return m.fw.silences.silent != nil && m.fw.silences.silent(Request{m.hw.VMID, method, resource})
}

// hang returns at once unless the machine is silent about the request: then it waits until
// the caller or the machine is gone.
func (m *machine) hang(ctx context.Context, method, resource string) error {
	if !m.silent(method, resource) {
		return nil
	}
	<-ctx.Done()
	return status.FromContextError(ctx.Err()).Err()
}

// stateService is COSI's service, whose requests are also selected by resource type.
const stateService = "/cosi.resource.State/"

// muteListener accepts connections to a silent machine and never reads from them.
type muteListener struct {
	net.Listener
	m *machine

	mu   sync.Mutex
	kept []net.Conn
}

// Accept implements net.Listener.
func (l *muteListener) Accept() (net.Conn, error) {
	for {
		conn, err := l.Listener.Accept()
		if err != nil || !l.m.silent("", "") {
			return conn, err
		}
		l.mu.Lock()
		l.kept = append(l.kept, conn)
		l.mu.Unlock()
	}
}

// Close implements net.Listener.
func (l *muteListener) Close() error {
	err := l.Listener.Close()
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, conn := range l.kept {
		_ = conn.Close() // it was never used
	}
	l.kept = nil
	return err
}

package talosapi

import (
	"context"
	"net"
	"sync"

	"google.golang.org/grpc/status"
)

// Request is what decides whether a machine answers.
type Request struct {
	VMID     int
	Method   string // gRPC's full name; "": a connection, before anything is asked over it
	Resource string // the type, where resources are read
}

// silences knows what the machines do not answer.
type silences struct {
	mu     sync.Mutex
	silent func(Request) bool // nil: they answer everything
}

// Silence has machines take each request that silent names and never answer it,
// as where machined hangs, or the kernel behind a port that is open still. silent
// sees every request that this Firmware's machines get and let through; nil ends
// it for the requests that come later.
func (fw *Firmware) Silence(silent func(Request) bool) {
	fw.silences.mu.Lock()
	defer fw.silences.mu.Unlock()
	fw.silences.silent = silent
}

func (m *machine) silent(method, resource string) bool {
	m.fw.silences.mu.Lock()
	defer m.fw.silences.mu.Unlock()
	return m.fw.silences.silent != nil && m.fw.silences.silent(Request{m.hw.VMID, method, resource})
}

// hang returns at once unless the machine is silent about it: then when nobody
// waits for an answer any more, or when the machine is gone.
func (m *machine) hang(ctx context.Context, method, resource string) error {
	if !m.silent(method, resource) {
		return nil
	}
	<-ctx.Done()
	return status.FromContextError(ctx.Err()).Err()
}

// stateService is COSI's, whose requests are known by their resource's type, too.
const stateService = "/cosi.resource.State/"

// muteListener keeps the connections to a silent machine, and never reads from them.
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
		_ = conn.Close() // nothing was said over it
	}
	l.kept = nil
	return err
}

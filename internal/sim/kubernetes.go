package sim

import (
	"context"
	"fmt"
	"net"
	"sync"

	"github.com/recast-sh/recast/internal/sim/kubeapi"
	"github.com/recast-sh/recast/internal/sim/network"
	"github.com/recast-sh/recast/internal/sim/talosapi"
)

// upstream is the real control plane behind the API, nil if the lab has none.
func (l *Lab) upstream() (*kubeapi.Upstream, error) {
	if l.o.Kubernetes == nil {
		return nil, nil
	}
	u, err := kubeapi.ReadUpstream(l.o.Kubernetes, nil)
	if err != nil {
		return nil, err
	}
	l.closers = append(l.closers, u.Close)
	return u, nil
}

// refused reports an error that the real control plane returned to the lab's kubelets.
func (l *Lab) refused(err error) { l.complain(fmt.Errorf("kubelets: %w", err)) }

// serveKubernetes serves the Kubernetes API until ctx ends: each API server at its
// machine's address, and one of them at the shared address. While no API server runs,
// nothing listens there.
func (l *Lab) serveKubernetes(ctx context.Context, shared string) {
	running := map[talosapi.APIServer]*apiServer{}
	front := &frontDoor{lab: l, addr: shared, ctx: ctx}
	for ctx.Err() == nil {
		servers, changed := l.machines.APIServers()
		wanted := map[talosapi.APIServer]bool{}
		for _, s := range servers {
			wanted[s] = true
		}
		for s, r := range running {
			if !wanted[s] {
				front.leave(r)
				r.end()
				delete(running, s)
			}
		}
		for _, s := range servers {
			if running[s] == nil {
				running[s] = l.startAPIServer(ctx, s)
				if s.Ready {
					front.join(running[s])
				}
			}
		}
		select {
		case <-ctx.Done():
		case <-changed:
		}
	}
	for _, r := range running {
		front.leave(r)
		r.end()
	}
}

// apiServer answers at its machine's address, and on connections handed over from the
// shared address.
type apiServer struct {
	shared *handedOver
	door   network.Door
	cancel context.CancelFunc
	done   sync.WaitGroup
}

func (l *Lab) startAPIServer(ctx context.Context, s talosapi.APIServer) *apiServer {
	ctx, cancel := context.WithCancel(ctx)
	r := &apiServer{shared: newHandedOver(), cancel: cancel}
	addr := net.JoinHostPort(s.Address.String(), kubernetesPort)
	who := kubeapi.Identity{Version: s.Version, Certificate: s.Certificate, ClientCA: s.Clients, Unready: !s.Ready}
	r.door = network.Door{Handler: l.Kube, Context: l.Kube.As(ctx, who), Certificate: s.Certificate.Leaf, HTTP2: true}
	serve := func(on net.Listener) {
		r.done.Go(func() {
			if err := l.Kube.Serve(ctx, on, who); err != nil {
				l.complain(err)
			}
		})
	}
	own, err := l.o.Network.Listen(addr)
	if err != nil {
		l.complain(fmt.Errorf("listen on %s: %w", addr, err))
	} else {
		l.o.Network.Open(ctx, addr, func() (network.Door, bool) { return r.door, true })
		serve(own)
	}
	serve(r.shared)
	return r
}

// end closes every connection and waits for the handlers.
func (r *apiServer) end() {
	r.cancel()
	r.done.Wait()
}

func (l *Lab) complain(err error) {
	if l.o.Console != nil {
		fmt.Fprintf(l.o.Console, "Kubernetes API: %v\n", err)
	}
}

// frontDoor hands connections to the shared address to the API server that has run
// longest, like a load balancer with a preferred backend.
type frontDoor struct {
	lab  *Lab
	addr string
	ctx  context.Context // of the lab

	mu       sync.Mutex
	listener net.Listener // nil while no API server runs
	behind   []*apiServer
}

func (f *frontDoor) join(r *apiServer) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.behind = append(f.behind, r)
	if f.listener != nil {
		return
	}
	listener, err := f.lab.o.Network.Listen(f.addr)
	if err != nil {
		f.lab.complain(fmt.Errorf("listen on %s: %w", f.addr, err))
		return
	}
	f.listener = listener
	f.lab.o.Network.Open(f.ctx, f.addr, f.door)
	f.lab.serving.Go(func() { f.accept(listener) })
}

// door is that of the API server which gets the next connection.
func (f *frontDoor) door() (network.Door, bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.behind) == 0 {
		return network.Door{}, false
	}
	return f.behind[0].door, true
}

func (f *frontDoor) leave(r *apiServer) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for i, b := range f.behind {
		if b == r {
			f.behind = append(f.behind[:i:i], f.behind[i+1:]...)
			break
		}
	}
	if len(f.behind) == 0 && f.listener != nil {
		_ = f.listener.Close() // refuse new connections
		f.listener = nil
	}
}

func (f *frontDoor) accept(listener net.Listener) {
	for {
		conn, err := listener.Accept()
		if err != nil {
			return
		}
		f.mu.Lock()
		var to *apiServer
		if len(f.behind) > 0 {
			to = f.behind[0]
		}
		f.mu.Unlock()
		if to == nil || !to.shared.hand(conn) {
			_ = conn.Close() // no API server takes it
		}
	}
}

// handedOver is a listener whose connections come from another listener.
type handedOver struct {
	conns  chan net.Conn
	closed chan struct{}
	once   sync.Once
}

func newHandedOver() *handedOver {
	return &handedOver{conns: make(chan net.Conn), closed: make(chan struct{})}
}

// hand passes a connection to Accept; it is false once h is closed.
func (h *handedOver) hand(conn net.Conn) bool {
	select {
	case h.conns <- conn:
		return true
	case <-h.closed:
		return false
	}
}

// Accept implements net.Listener.
func (h *handedOver) Accept() (net.Conn, error) {
	select {
	case conn := <-h.conns:
		return conn, nil
	case <-h.closed:
		return nil, net.ErrClosed
	}
}

// Close implements net.Listener.
func (h *handedOver) Close() error {
	h.once.Do(func() { close(h.closed) })
	return nil
}

// Addr implements net.Listener.
func (h *handedOver) Addr() net.Addr { return &net.TCPAddr{} }

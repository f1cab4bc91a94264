// Package kubeapi is the Kubernetes API of a lab: the real wire protocol over
// a small store, with the kubelets and controllers that make a cluster live.
package kubeapi

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"

	"github.com/recast-sh/recast/internal/sim/kubeapi/control"
	"github.com/recast-sh/recast/internal/sim/kubeapi/store"
	"github.com/recast-sh/recast/internal/sim/record"
)

// NodeInfo is a machine as its kubelet reports it.
type NodeInfo = control.NodeInfo

// StaticPod is a pod that a machine runs whatever the API says.
type StaticPod = control.StaticPod

// Options make a Server.
type Options struct {
	Certificate tls.Certificate  // the server's own
	ClientCA    *x509.CertPool   // who signs clients' certificates; O=system:masters may do everything, others what is granted
	Version     string           // "v1.35.4"
	Recorder    *record.Recorder // sees every request
	Speed       float64          // what takes the cluster a second takes 1/Speed of one; 0: 1
	Store       store.Store      // nil: in memory, with what a new Talos cluster holds
	// Upstream is a real control plane in the place of store and controllers; nil: the lab's own.
	Upstream *Upstream
	// Refused hears of what that control plane refuses to the lab's kubelets.
	Refused func(error)
	// Manifests are what Talos puts into a new cluster; nil: what it does with a
	// configuration that says nothing of them.
	Manifests []map[string]any
	// Storage says what etcd answers to a read now, and may block as long as etcd
	// does; nil: it always answers.
	Storage func(context.Context) error
}

// Server is the API of one cluster, served on as many listeners as there are
// addresses for it.
type Server struct {
	o       Options
	store   store.Store
	remote  *store.Remote // the same where it is Upstream's
	control *control.Manager
	scheme  *runtime.Scheme
	codecs  serializer.CodecFactory
	built   []store.Resource // served from the start

	closing chan struct{} // closed by Close

	mu          sync.Mutex
	defined     []store.Resource               // custom ones
	pages       map[string]kept                // of lists that may be continued
	granted     map[string]func(Request) bool  // to the members of groups
	verified    map[string][]*x509.Certificate // chains of clients' certificates, by these
	webhook     Webhook                        // nil: none
	webhookName string
	closed      bool
	handling    sync.WaitGroup // requests and Serve calls
}

func (o Options) timeline() *record.Timeline {
	if o.Recorder == nil {
		return nil
	}
	return &o.Recorder.Timeline
}

// New starts the controllers; Serve makes the API reachable. The caller closes it.
func New(ctx context.Context, o Options) (*Server, error) {
	if o.Manifests == nil {
		var err error
		if o.Manifests, err = bootstrap(o.Version); err != nil {
			return nil, err
		}
	}
	scheme, err := store.NewScheme()
	if err != nil {
		return nil, fmt.Errorf("register kinds: %w", err)
	}
	s := &Server{
		o: o, store: o.Store, scheme: scheme, codecs: serializer.NewCodecFactory(scheme), built: store.Resources(),
		closing: make(chan struct{}), pages: map[string]kept{}, verified: map[string][]*x509.Certificate{},
	}
	switch {
	case o.Upstream != nil:
		if s.remote, err = store.NewRemote(o.Upstream.base, o.Upstream.masters); err != nil {
			return nil, err
		}
		s.store = s.remote
	case o.Store == nil:
		s.store = store.NewMemory()
	}
	if o.Store == nil {
		if err := seed(ctx, s.store, o.Manifests); err != nil {
			return nil, err
		}
	}
	if o.Upstream != nil {
		s.control, err = control.NewKubelets(ctx, s.store, cmp.Or(o.Speed, 1), o.Refused)
	} else {
		s.control, err = control.New(ctx, s.store, cmp.Or(o.Speed, 1), o.timeline())
	}
	if err != nil {
		return nil, err
	}
	return s, nil
}

// Store is where the objects are, for the lab's own eyes and hands.
func (s *Server) Store() store.Store { return s.store }

// NodeUp starts the kubelet of a machine that has booted and returns at once.
func (s *Server) NodeUp(info NodeInfo) { s.control.NodeUp(info) }

// NodeDown ends that of the machine with that UUID and returns at once; the API notices by and by.
func (s *Server) NodeDown(uuid string) { s.control.NodeDown(uuid) }

// StaticPods says which ones the running kubelet of the machine with that UUID has.
func (s *Server) StaticPods(uuid string, pods []StaticPod) { s.control.StaticPods(uuid, pods) }

// Node reads a Node object as it is now.
func (s *Server) Node(ctx context.Context, name string) (*corev1.Node, error) {
	o, err := s.store.Get(ctx, store.Nodes(), "", name)
	if err != nil {
		return nil, err
	}
	return o.(*corev1.Node).DeepCopy(), nil
}

// NodeNow is Node without a copy: what it gives is not to be changed.
func (s *Server) NodeNow(ctx context.Context, name string) (*corev1.Node, error) {
	o, err := s.store.Get(ctx, store.Nodes(), "", name)
	if err != nil {
		return nil, err
	}
	return o.(*corev1.Node), nil
}

// Serve answers on l until l, the server or ctx ends, then ends the
// connections made through it. The controllers go on: only the way to the API is gone.
func (s *Server) Serve(ctx context.Context, l net.Listener) error {
	return s.ServeAs(ctx, l, Identity{Version: s.o.Version})
}

// Identity is which of a cluster's API servers answers.
type Identity struct {
	Version string
	Unready bool // it answers, but some of what it does when it starts never ends
}

// identityKey is where the context of a request has which API server was asked.
type identityKey struct{}

// As is the context of requests to one of the cluster's API servers.
func (*Server) As(ctx context.Context, who Identity) context.Context {
	return context.WithValue(ctx, identityKey{}, who)
}

// ServeAs is Serve for one of the cluster's API servers.
func (s *Server) ServeAs(ctx context.Context, l net.Listener, who Identity) error {
	if !s.enter() {
		return l.Close()
	}
	defer s.handling.Done()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	s.handling.Go(func() {
		defer cancel()
		select {
		case <-s.closing:
		case <-ctx.Done():
		}
		_ = l.Close() // it may be closed already
	})
	protocols := new(http.Protocols)
	protocols.SetHTTP1(true)
	protocols.SetHTTP2(true)
	srv := &http.Server{
		Handler:   s,
		Protocols: protocols,
		// Any certificate is let in: who it belongs to is the API's to answer, with a status.
		TLSConfig:         &tls.Config{Certificates: []tls.Certificate{s.o.Certificate}, ClientAuth: tls.RequestClientCert, MinVersion: tls.VersionTLS12},
		BaseContext:       func(net.Listener) context.Context { return s.As(ctx, who) },
		ReadHeaderTimeout: 30 * time.Second,
		ErrorLog:          log.New(io.Discard, "", 0), // broken connections are part of the story
	}
	err := srv.ServeTLS(l, "", "")
	over := ctx.Err() != nil || errors.Is(err, net.ErrClosed)
	cancel()
	_ = srv.Close() // the listener is closed already
	if over {
		return nil
	}
	return err
}

// enter counts a request or a listener in, unless the server is closed.
func (s *Server) enter() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return false
	}
	s.handling.Add(1)
	return true
}

// Close ends watches, requests, listeners and controllers, and returns when they have ended.
func (s *Server) Close() error {
	s.mu.Lock()
	if !s.closed {
		s.closed = true
		close(s.closing)
	}
	s.mu.Unlock()
	s.handling.Wait()
	return s.control.Close()
}

// ServeHTTP answers one request.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if !s.enter() {
		panic(http.ErrAbortHandler)
	}
	defer s.handling.Done()
	user := s.authenticate(r)
	t := s.target(r.URL.Path)
	call := record.Call{
		Proto: "kubernetes", Target: t.node(), Method: r.Method, Path: r.URL.RequestURI(), User: user.name,
		Mutation: r.Method != http.MethodGet && r.Method != http.MethodHead,
	}
	if s.o.Recorder != nil {
		if s.o.Recorder.Await(r.Context(), "kubernetes") != nil {
			panic(http.ErrAbortHandler)
		}
		var err error
		if call, err = s.o.Recorder.Begin(call); err != nil {
			panic(http.ErrAbortHandler)
		}
	}
	if s.o.Upstream != nil {
		s.pass(w, r, user, call)
		return
	}
	a := s.answer(r, user, t)
	if s.o.Recorder != nil {
		s.o.Recorder.End(call)
		if a.watch == nil {
			w = s.o.Recorder.Counted(w, call)
		}
	}
	s.write(w, r, a)
}

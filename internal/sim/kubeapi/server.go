// Package kubeapi is the Kubernetes API of a lab: a [Server] speaks the real wire
// protocol over a small store, with the kubelets and controllers of a cluster.
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

// StaticPod is a pod that a machine runs independently of the API.
type StaticPod = control.StaticPod

// Options are those of New.
type Options struct {
	Version  string           // of a new cluster: "v1.35.4"
	Recorder *record.Recorder // records every request
	Speed    float64          // a second of the cluster takes 1/Speed seconds; 0: 1
	// Upstream is a real control plane that replaces store and controllers; nil: the lab's own.
	Upstream *Upstream
	// Refused gets the upstream's errors for the lab's kubelets.
	Refused func(error)
	// Manifests are Talos' objects in a new cluster; nil: those of a default configuration.
	Manifests []map[string]any
	// Storage is etcd's result for a read now, and may block like etcd; nil: etcd always
	// answers.
	Storage func(context.Context) error
}

// Server is the API of one cluster, served on any number of listeners.
type Server struct {
	o       Options
	store   store.Store
	remote  *store.Remote // store, if it is Upstream's
	control *control.Manager
	scheme  *runtime.Scheme
	codecs  serializer.CodecFactory
	built   []store.Resource // served from the start

	closing chan struct{} // closed by Close

	mu          sync.Mutex
	defined     []store.Resource               // custom resources
	pages       map[string]kept                // of lists that can be continued
	granted     map[string]func(Request) bool  // by group
	verified    map[client][]*x509.Certificate // chains of clients' certificates
	webhook     Webhook                        // nil: none
	webhookName string
	closed      bool
	handling    sync.WaitGroup // requests and Serve calls
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
		o: o, store: store.NewMemory(), scheme: scheme, codecs: serializer.NewCodecFactory(scheme), built: store.Resources(),
		closing: make(chan struct{}), pages: map[string]kept{}, verified: map[client][]*x509.Certificate{},
	}
	if o.Upstream != nil {
		if s.remote, err = store.NewRemote(o.Upstream.base, o.Upstream.masters); err != nil {
			return nil, err
		}
		s.store = s.remote
	}
	if err := seed(ctx, s.store, o.Manifests); err != nil {
		return nil, err
	}
	if o.Upstream != nil {
		s.control, err = control.NewKubelets(ctx, s.store, cmp.Or(o.Speed, 1), o.Refused)
	} else {
		s.control, err = control.New(ctx, s.store, cmp.Or(o.Speed, 1), &o.Recorder.Timeline)
	}
	if err != nil {
		return nil, err
	}
	return s, nil
}

// Store is the lab's direct access to the objects.
func (s *Server) Store() store.Store { return s.store }

// NodeUp starts the kubelet of a machine that has booted; it does not wait.
func (s *Server) NodeUp(info NodeInfo) { s.control.NodeUp(info) }

// LetIn has the servers of iSCSI and NVMe-oF let in only machines by these names.
func (s *Server) LetIn(names ...string) { s.control.LetIn(names...) }

// NodeDown ends the kubelet of the machine with that UUID; it does not wait, and the API notices
// later.
func (s *Server) NodeDown(uuid string) { s.control.NodeDown(uuid) }

// StaticPods sets the static pods of the running kubelet of the machine with that UUID.
func (s *Server) StaticPods(uuid string, pods []StaticPod) { s.control.StaticPods(uuid, pods) }

// Node reads the present Node object.
func (s *Server) Node(ctx context.Context, name string) (*corev1.Node, error) {
	o, err := s.store.Get(ctx, store.Nodes(), "", name)
	if err != nil {
		return nil, err
	}
	return o.(*corev1.Node).DeepCopy(), nil
}

// NodeNow is Node without a copy: the caller must not change it.
func (s *Server) NodeNow(ctx context.Context, name string) (*corev1.Node, error) {
	o, err := s.store.Get(ctx, store.Nodes(), "", name)
	if err != nil {
		return nil, err
	}
	return o.(*corev1.Node), nil
}

// Identity says which of a cluster's API servers answers.
type Identity struct {
	Version     string
	Certificate *tls.Certificate
	ClientCA    *x509.CertPool // issuers of clients' certificates; O=system:masters may do everything, others what is granted
	Unready     bool           // it answers, but its start never completes
}

// identityKey is the context key of a request's Identity.
type identityKey struct{}

// As is the context of requests to one of the cluster's API servers.
func (*Server) As(ctx context.Context, who Identity) context.Context {
	return context.WithValue(ctx, identityKey{}, who)
}

// Serve answers on l as one of the cluster's API servers until l, the server or ctx ends, then
// closes its connections. The controllers keep running.
func (s *Server) Serve(ctx context.Context, l net.Listener, who Identity) error {
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
		// Any certificate is accepted here: the API answers invalid ones with a status.
		TLSConfig:         &tls.Config{Certificates: []tls.Certificate{*who.Certificate}, ClientAuth: tls.RequestClientCert, MinVersion: tls.VersionTLS12},
		BaseContext:       func(net.Listener) context.Context { return s.As(ctx, who) },
		ReadHeaderTimeout: 30 * time.Second,
		ErrorLog:          log.New(io.Discard, "", 0), // tests break connections
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

// enter counts a request or a listener, unless the server is closed.
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
	if s.o.Recorder.Await(r.Context(), "kubernetes") != nil {
		panic(http.ErrAbortHandler)
	}
	call, err := s.o.Recorder.Begin(call)
	if err != nil {
		panic(http.ErrAbortHandler)
	}
	if s.o.Upstream != nil {
		s.pass(w, r, user, call)
		return
	}
	a := s.answer(r, user, t)
	s.o.Recorder.End(call)
	if a.watch == nil {
		w = s.o.Recorder.Counted(w, call)
	}
	s.write(w, r, a)
}

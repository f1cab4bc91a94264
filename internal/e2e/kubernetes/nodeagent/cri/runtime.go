// Package cri is a container runtime, as a kubelet wants one, that runs containers as
// processes of this machine: in a file system, mount, PID, IPC and UTS namespace of their
// own and with the user they ask for, but with this machine's network and without cgroups.
package cri

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"time"

	internalapi "k8s.io/cri-api/pkg/apis"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	critest "k8s.io/cri-api/pkg/apis/testing"

	"github.com/recast-sh/recast/internal/e2e/kubernetes/nodeagent/node"
)

// Runtime is the runtime of one node. What a kubelet asks for only when it measures or
// resizes containers is Kubernetes' own fake, which knows of none.
type Runtime struct {
	*critest.FakeRuntimeService

	config node.Config
	// apiHost and apiPort are where the API server really is. Its service's address leads
	// nowhere without a kube-proxy.
	apiHost, apiPort string
	init             string // the program containerinit
	fork             chan func()
	store            store
	images           images

	mu         sync.Mutex
	sandboxes  map[string]*sandbox
	containers map[string]*container
}

var _ internalapi.RuntimeService = (*Runtime)(nil)

// New makes a runtime, whose containers find the API server at that URL. The program
// containerinit is beside the one that calls New.
func New(config node.Config, apiServer string) (*Runtime, error) {
	api, err := url.Parse(apiServer)
	if err != nil {
		return nil, fmt.Errorf("the API server's URL: %w", err)
	}
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	r := &Runtime{
		FakeRuntimeService: critest.NewFakeRuntimeService(),
		config:             config,
		apiHost:            api.Hostname(), apiPort: api.Port(),
		init:   filepath.Join(filepath.Dir(self), "containerinit"),
		fork:   make(chan func()),
		store:  store{config},
		images: images{config},
	}
	if _, err := os.Stat(r.init); err != nil {
		return nil, err
	}
	if r.sandboxes, r.containers, err = r.store.load(); err != nil {
		return nil, fmt.Errorf("load what the runtime has stored: %w", err)
	}
	go r.forkAll()
	return r, nil
}

// forkAll starts processes, for ever. They are killed when the thread that started them
// ends, and a thread of Go may end at any time unless it belongs to one goroutine.
func (r *Runtime) forkAll() {
	runtime.LockOSThread()
	for start := range r.fork {
		start()
	}
}

// newID makes identifiers that sort by time.
func newID() string {
	b := make([]byte, 24)
	_, _ = rand.Read(b) // never fails
	return fmt.Sprintf("%016x%s", time.Now().UnixNano(), hex.EncodeToString(b))
}

// Version names the runtime.
func (r *Runtime) Version(context.Context, string) (*runtimeapi.VersionResponse, error) {
	return &runtimeapi.VersionResponse{Version: "0.1.0", RuntimeName: "process", RuntimeVersion: "1.0.0", RuntimeApiVersion: "v1"}, nil
}

// Status says that everything is ready.
func (r *Runtime) Status(context.Context, bool) (*runtimeapi.StatusResponse, error) {
	return &runtimeapi.StatusResponse{
		Status: &runtimeapi.RuntimeStatus{Conditions: []*runtimeapi.RuntimeCondition{
			{Type: runtimeapi.RuntimeReady, Status: true}, {Type: runtimeapi.NetworkReady, Status: true},
		}},
		RuntimeHandlers: []*runtimeapi.RuntimeHandler{{Features: &runtimeapi.RuntimeHandlerFeatures{}}},
	}, nil
}

// matches reports whether labels have all that the selector has.
func matches(selector, labels map[string]string) bool {
	for name, value := range selector {
		if got, ok := labels[name]; !ok || got != value {
			return false
		}
	}
	return true
}

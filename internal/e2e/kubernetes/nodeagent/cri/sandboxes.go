package cri

import (
	"context"
	"crypto/sha256"
	"errors"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// sandbox is a pod's, which here is only a record and a directory with two files.
type sandbox struct {
	id        string
	config    *runtimeapi.PodSandboxConfig
	handler   string
	createdAt time.Time
	stopped   bool
	dir       string
}

func (s *sandbox) state() runtimeapi.PodSandboxState {
	if s.stopped {
		return runtimeapi.PodSandboxState_SANDBOX_NOTREADY
	}
	return runtimeapi.PodSandboxState_SANDBOX_READY
}

func (s *sandbox) resolvConf() string { return filepath.Join(s.dir, "resolv.conf") }

func (s *sandbox) hostnameFile() string { return filepath.Join(s.dir, "hostname") }

// hostname is "" for a pod with the machine's network, whose name is the machine's.
func (s *sandbox) hostname() string { return s.config.Hostname }

// RunPodSandbox makes a pod's sandbox.
func (r *Runtime) RunPodSandbox(_ context.Context, config *runtimeapi.PodSandboxConfig, handler string) (string, error) {
	s := &sandbox{id: newID(), config: config, handler: handler, createdAt: time.Now()}
	s.dir = r.store.sandboxDir(s.id)
	if err := os.MkdirAll(s.dir, 0o755); err != nil {
		return "", err
	}
	// The cluster's name server leads nowhere, so a pod has the machine's.
	resolv, err := os.ReadFile("/etc/resolv.conf")
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return "", err
	}
	if err := os.WriteFile(s.resolvConf(), resolv, 0o644); err != nil {
		return "", err
	}
	if err := os.WriteFile(s.hostnameFile(), []byte(s.hostname()+"\n"), 0o644); err != nil {
		return "", err
	}
	if config.LogDirectory != "" {
		if err := os.MkdirAll(config.LogDirectory, 0o755); err != nil {
			return "", err
		}
	}
	if err := r.store.sandbox(s); err != nil {
		return "", err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.sandboxes[s.id] = s
	return s.id, nil
}

// StopPodSandbox kills what still runs in a pod.
func (r *Runtime) StopPodSandbox(_ context.Context, id string) error {
	for _, c := range r.containersOf(id) {
		r.kill(c)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if s := r.sandboxes[id]; s != nil {
		s.stopped = true
	}
	return nil
}

// RemovePodSandbox kills what still runs in a pod, and forgets the pod.
func (r *Runtime) RemovePodSandbox(ctx context.Context, id string) error {
	for _, c := range r.containersOf(id) {
		if err := r.RemoveContainer(ctx, c.record.ID); err != nil {
			return err
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	s := r.sandboxes[id]
	if s == nil {
		return nil
	}
	delete(r.sandboxes, id)
	return errors.Join(forget(r.store.sandboxFile(id)), os.RemoveAll(s.dir))
}

// address is the pod's. All pods share the machine's network: one that listens on its own address alone
// leaves the same port to others.
func (s *sandbox) address() string {
	sum := sha256.Sum256([]byte(s.id))
	return netip.AddrFrom4([4]byte{127, 250, sum[0], max(1, sum[1])}).String()
}

// PodSandboxStatus describes a pod's sandbox.
func (r *Runtime) PodSandboxStatus(_ context.Context, id string, _ bool) (*runtimeapi.PodSandboxStatusResponse, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	s := r.sandboxes[id]
	if s == nil {
		return nil, status.Errorf(codes.NotFound, "pod sandbox %q not found", id)
	}
	return &runtimeapi.PodSandboxStatusResponse{Status: &runtimeapi.PodSandboxStatus{
		Id: id, Metadata: s.config.Metadata, State: s.state(), CreatedAt: s.createdAt.UnixNano(),
		Network: &runtimeapi.PodSandboxNetworkStatus{Ip: s.address()},
		Linux: &runtimeapi.LinuxPodSandboxStatus{Namespaces: &runtimeapi.Namespace{
			Options: s.config.GetLinux().GetSecurityContext().GetNamespaceOptions(),
		}},
		Labels: s.config.Labels, Annotations: s.config.Annotations, RuntimeHandler: s.handler,
	}}, nil
}

// ListPodSandbox lists the sandboxes that the filter lets pass.
func (r *Runtime) ListPodSandbox(_ context.Context, filter *runtimeapi.PodSandboxFilter) (list []*runtimeapi.PodSandbox, _ error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, s := range r.sandboxes {
		if id := filter.GetId(); id != "" && id != s.id {
			continue
		}
		if want := filter.GetState(); want != nil && want.State != s.state() {
			continue
		}
		if !matches(filter.GetLabelSelector(), s.config.Labels) {
			continue
		}
		list = append(list, &runtimeapi.PodSandbox{
			Id: s.id, Metadata: s.config.Metadata, State: s.state(), CreatedAt: s.createdAt.UnixNano(),
			Labels: s.config.Labels, Annotations: s.config.Annotations, RuntimeHandler: s.handler,
		})
	}
	return list, nil
}

package cri

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/recast-sh/recast/internal/e2e/kubernetes/nodeagent/jail"
	"github.com/recast-sh/recast/internal/e2e/kubernetes/nodeagent/node"
)

// container is one of a pod's. Its fields are guarded by Runtime.mu, but those that
// never change after it is made: sandbox, config, image, createdAt, dir, log, ended.
type container struct {
	sandbox   *sandbox
	config    *runtimeapi.ContainerConfig
	image     image
	createdAt time.Time
	dir       string
	log       *log

	process *os.Process
	running jail.Spec
	ended   chan struct{} // closed when it has exited
	state   runtimeapi.ContainerState
	record  node.Container
	reason  string // of its end
	message string
}

// CreateContainer makes a container in a pod's sandbox.
func (r *Runtime) CreateContainer(_ context.Context, sandboxID string, config *runtimeapi.ContainerConfig, _ *runtimeapi.PodSandboxConfig) (string, error) {
	im, err := r.images.find(config.Image.UserSpecifiedImage)
	if err != nil {
		return "", err
	}
	r.mu.Lock()
	s := r.sandboxes[sandboxID]
	r.mu.Unlock()
	if s == nil {
		return "", status.Errorf(codes.NotFound, "pod sandbox %q not found", sandboxID)
	}
	id := newID()
	c := &container{sandbox: s, config: config, image: im, createdAt: time.Now(), ended: make(chan struct{})}
	c.dir = filepath.Join(r.config.Containers(), id)
	if err := os.MkdirAll(filepath.Join(c.dir, "root"), 0o755); err != nil {
		return "", err
	}
	pod := s.config.Metadata
	c.record = node.Container{
		ID: id, Namespace: pod.Namespace, Pod: pod.Name, PodUID: pod.Uid, Name: config.Metadata.Name,
		Attempt: int(config.Metadata.Attempt), Log: filepath.Join(c.dir, "output"),
	}
	if c.log, err = openLog(c.logPath(), c.record.Log); err != nil {
		return "", err
	}
	if err := r.store.container(c); err != nil {
		return "", err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.containers[id] = c
	return id, nil
}

// logPath is where the kubelet wants the log, "" for nowhere.
func (c *container) logPath() string {
	if c.config.LogPath == "" {
		return ""
	}
	return filepath.Join(c.sandbox.config.LogDirectory, c.config.LogPath)
}

// container looks a container up.
func (r *Runtime) container(id string) (*container, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if c := r.containers[id]; c != nil {
		return c, nil
	}
	return nil, status.Errorf(codes.NotFound, "container %q not found", id)
}

func (r *Runtime) containersOf(sandboxID string) (list []*container) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, c := range r.containers {
		if c.sandbox.id == sandboxID {
			list = append(list, c)
		}
	}
	return list
}

// RemoveContainer kills a container that still runs, and forgets it. Its record and its
// output stay on the disk.
func (r *Runtime) RemoveContainer(_ context.Context, id string) error {
	c, err := r.container(id)
	if err != nil {
		return nil // as runtimes do
	}
	r.kill(c)
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.containers, id)
	return errors.Join(c.log.Close(), forget(r.store.containerFile(id)), os.RemoveAll(filepath.Join(c.dir, "root")))
}

// ReopenContainerLog continues the log in a new file, because the kubelet has renamed the
// old one.
func (r *Runtime) ReopenContainerLog(_ context.Context, id string) error {
	c, err := r.container(id)
	if err != nil {
		return err
	}
	return c.log.reopen()
}

// ListContainers lists the containers that the filter lets pass.
func (r *Runtime) ListContainers(_ context.Context, filter *runtimeapi.ContainerFilter) (list []*runtimeapi.Container, _ error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for id, c := range r.containers {
		if want := filter.GetId(); want != "" && want != id {
			continue
		}
		if want := filter.GetPodSandboxId(); want != "" && want != c.sandbox.id {
			continue
		}
		if want := filter.GetState(); want != nil && want.State != c.state {
			continue
		}
		if !matches(filter.GetLabelSelector(), c.config.Labels) {
			continue
		}
		list = append(list, &runtimeapi.Container{
			Id: id, PodSandboxId: c.sandbox.id, Metadata: c.config.Metadata,
			Image: &runtimeapi.ImageSpec{Image: c.image.ref}, ImageRef: c.image.id(), ImageId: c.image.id(),
			State: c.state, CreatedAt: c.createdAt.UnixNano(), Labels: c.config.Labels, Annotations: c.config.Annotations,
		})
	}
	return list, nil
}

// ContainerStatus describes a container.
func (r *Runtime) ContainerStatus(_ context.Context, id string, _ bool) (*runtimeapi.ContainerStatusResponse, error) {
	c, err := r.container(id)
	if err != nil {
		return nil, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	s := &runtimeapi.ContainerStatus{
		Id: id, Metadata: c.config.Metadata, State: c.state, CreatedAt: c.createdAt.UnixNano(),
		Image: &runtimeapi.ImageSpec{Image: c.image.ref}, ImageRef: c.image.id(), ImageId: c.image.id(),
		Reason: c.reason, Message: c.message, ExitCode: c.record.ExitCode,
		Labels: c.config.Labels, Annotations: c.config.Annotations, Mounts: c.config.Mounts, LogPath: c.log.path,
	}
	if !c.record.StartedAt.IsZero() {
		s.StartedAt = c.record.StartedAt.UnixNano()
	}
	if !c.record.FinishedAt.IsZero() {
		s.FinishedAt = c.record.FinishedAt.UnixNano()
	}
	return &runtimeapi.ContainerStatusResponse{Status: s}, nil
}

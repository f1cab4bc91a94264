package cri

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"google.golang.org/protobuf/proto"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/recast-sh/recast/internal/e2e/kubernetes/nodeagent/node"
)

// store is the directory in which a runtime finds after a boot what it had before.
type store struct{ config node.Config }

// storedSandbox is a sandbox on the disk.
type storedSandbox struct {
	ID, Handler string
	Config      []byte // *runtimeapi.PodSandboxConfig
	CreatedAt   time.Time
}

// storedContainer is a container on the disk.
type storedContainer struct {
	Sandbox         string
	Config          []byte // *runtimeapi.ContainerConfig
	Image           node.Image
	ImageRef        string
	CreatedAt       time.Time
	State           runtimeapi.ContainerState
	Record          node.Container
	Reason, Message string
}

func (t store) sandboxFile(id string) string {
	return filepath.Join(t.config.Runtime(), "sandbox-"+id+".json")
}

// sandboxDir has the files of a sandbox.
func (t store) sandboxDir(id string) string { return filepath.Join(t.config.Runtime(), "sandbox-"+id) }

func (t store) containerFile(id string) string {
	return filepath.Join(t.config.Runtime(), "container-"+id+".json")
}

func (t store) sandbox(s *sandbox) error {
	config, err := proto.Marshal(s.config)
	if err != nil {
		return err
	}
	return node.WriteFile(t.sandboxFile(s.id), storedSandbox{ID: s.id, Handler: s.handler, Config: config, CreatedAt: s.createdAt})
}

// container stores a container, and its record for tests. The caller has locked
// Runtime.mu, or nobody else knows the container yet.
func (t store) container(c *container) error {
	config, err := proto.Marshal(c.config)
	if err != nil {
		return err
	}
	return errors.Join(t.config.WriteContainer(c.record), node.WriteFile(t.containerFile(c.record.ID), storedContainer{
		Sandbox: c.sandbox.id, Config: config, Image: c.image.Image, ImageRef: c.image.ref, CreatedAt: c.createdAt,
		State: c.state, Record: c.record, Reason: c.reason, Message: c.message,
	}))
}

// load finds what there was before the node was booted. Nothing of it runs any more.
func (t store) load() (sandboxes map[string]*sandbox, containers map[string]*container, err error) {
	sandboxes, containers = map[string]*sandbox{}, map[string]*container{}
	if err := os.MkdirAll(t.config.Runtime(), 0o755); err != nil {
		return nil, nil, err
	}
	files, err := filepath.Glob(t.sandboxFile("*"))
	if err != nil {
		return nil, nil, err
	}
	for _, file := range files {
		s, err := t.loadSandbox(file)
		if err != nil {
			return nil, nil, fmt.Errorf("%s: %w", file, err)
		}
		sandboxes[s.id] = s
	}
	if files, err = filepath.Glob(t.containerFile("*")); err != nil {
		return nil, nil, err
	}
	for _, file := range files {
		c, err := t.loadContainer(file, sandboxes)
		if err != nil {
			return nil, nil, fmt.Errorf("%s: %w", file, err)
		}
		containers[c.record.ID] = c
	}
	return sandboxes, containers, nil
}

func (t store) loadSandbox(file string) (*sandbox, error) {
	var stored storedSandbox
	if err := readJSON(file, &stored); err != nil {
		return nil, err
	}
	s := &sandbox{
		id: stored.ID, handler: stored.Handler, config: new(runtimeapi.PodSandboxConfig), createdAt: stored.CreatedAt,
		stopped: true, dir: t.sandboxDir(stored.ID),
	}
	return s, proto.Unmarshal(stored.Config, s.config)
}

// loadContainer says of a container that ran what containerd says: nobody knows how it
// has ended.
func (t store) loadContainer(file string, sandboxes map[string]*sandbox) (*container, error) {
	var stored storedContainer
	if err := readJSON(file, &stored); err != nil {
		return nil, err
	}
	s := sandboxes[stored.Sandbox]
	if s == nil {
		return nil, fmt.Errorf("there is no sandbox %s", stored.Sandbox)
	}
	c := &container{
		sandbox: s, config: new(runtimeapi.ContainerConfig), image: image{Image: stored.Image, ref: stored.ImageRef},
		createdAt: stored.CreatedAt, dir: filepath.Join(t.config.Containers(), stored.Record.ID), ended: make(chan struct{}),
		state: runtimeapi.ContainerState_CONTAINER_EXITED, record: stored.Record, reason: stored.Reason, message: stored.Message,
	}
	close(c.ended)
	if err := proto.Unmarshal(stored.Config, c.config); err != nil {
		return nil, err
	}
	c.log = &log{path: c.logPath()}
	if stored.State != runtimeapi.ContainerState_CONTAINER_EXITED {
		c.reason, c.record.ExitCode, c.record.FinishedAt = "Unknown", 255, time.Now()
	}
	return c, t.container(c)
}

func readJSON(file string, into any) error {
	b, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	return json.Unmarshal(b, into)
}

// forget removes a file that may be gone.
func forget(file string) error {
	if err := os.Remove(file); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

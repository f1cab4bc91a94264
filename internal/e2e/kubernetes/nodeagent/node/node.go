// Package node has what the test's side of a node agent and its programs tell each other:
// how the node is made, and what its containers are.
package node

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// Config is a node, as the kubelet program reads it from a file.
type Config struct {
	// Name is the Node's, and its host name.
	Name   string            `json:"name"`
	Labels map[string]string `json:"labels,omitempty"`
	// CPUs, MemoryMiB and MaxPods are the Node's capacity. Nothing limits what containers
	// use.
	CPUs      int `json:"cpus"`
	MemoryMiB int `json:"memoryMiB"`
	MaxPods   int `json:"maxPods"`
	// Images are all that can be pulled, by reference.
	Images map[string]Image `json:"images"`
	// Dir contains everything that the node writes. A path in it may not be longer than a
	// socket's can be: some 100 bytes.
	Dir string `json:"dir"`
	// Kubeconfig is a file with the kubelet's credentials.
	Kubeconfig string `json:"kubeconfig"`
}

// Image is what a container starts from.
type Image struct {
	// Files are files and directories of this machine, by their absolute path in the image.
	// Containers can't change them.
	Files map[string]string `json:"files"`
	// EmptyDirs are directories that everybody may write to, such as /tmp.
	EmptyDirs  []string `json:"emptyDirs,omitempty"`
	Entrypoint []string `json:"entrypoint,omitempty"`
	Cmd        []string `json:"cmd,omitempty"`
	Env        []string `json:"env,omitempty"` // NAME=value
	WorkingDir string   `json:"workingDir,omitempty"`
	// User is "", "uid" or "uid:gid", "" being root.
	User string `json:"user,omitempty"`
}

// Container is the record of a container, which the kubelet program keeps in a file.
type Container struct {
	ID        string `json:"id"`
	Namespace string `json:"namespace"`
	Pod       string `json:"pod"`
	PodUID    string `json:"podUID"`
	Name      string `json:"name"`
	// Attempt counts restarts.
	Attempt int `json:"attempt"`
	// PID is its first process, as this machine counts them; 0 before it starts.
	PID        int       `json:"pid,omitempty"`
	Log        string    `json:"log,omitempty"` // file
	StartedAt  time.Time `json:"startedAt,omitzero"`
	FinishedAt time.Time `json:"finishedAt,omitzero"`
	ExitCode   int32     `json:"exitCode"`
}

// Running reports whether its process runs.
func (c Container) Running() bool { return c.PID != 0 && c.FinishedAt.IsZero() }

// ReadConfig reads a Config from a file.
func ReadConfig(file string) (c Config, err error) {
	b, err := os.ReadFile(file)
	if err != nil {
		return c, err
	}
	if err := json.Unmarshal(b, &c); err != nil {
		return c, fmt.Errorf("%s: %w", file, err)
	}
	return c, nil
}

// Paths in a node's directory.

// File is the file with the Config itself. The node's images are always those that it
// names at the moment.
func (c Config) File() string { return filepath.Join(c.Dir, "node.json") }

// WriteConfig writes it.
func (c Config) WriteConfig() error { return WriteFile(c.File(), c) }

// Kubelet is the kubelet's own directory.
func (c Config) Kubelet() string { return filepath.Join(c.Dir, "kubelet") }

// PodLogs is the directory of the containers' logs.
func (c Config) PodLogs() string { return filepath.Join(c.Dir, "logs") }

// Runtime is the directory of what the container runtime has to find after a boot.
func (c Config) Runtime() string { return filepath.Join(c.Dir, "runtime") }

// Containers is the directory of the containers, one directory each.
func (c Config) Containers() string { return filepath.Join(c.Dir, "containers") }

// OOM is the file whose presence says that the kill of a container is the kernel's, for
// want of memory.
func (c Config) OOM(id string) string { return filepath.Join(c.Containers(), id, "oom") }

func (c Config) record(id string) string { return filepath.Join(c.Containers(), id, "container.json") }

// WriteContainer keeps the record of a container, whose directory must exist.
func (c Config) WriteContainer(r Container) error { return WriteFile(c.record(r.ID), r) }

// WriteFile writes JSON to a file, of which a reader sees all or, before, what it was.
func WriteFile(file string, content any) error {
	b, err := json.MarshalIndent(content, "", "  ")
	if err != nil {
		return err
	}
	if err := os.WriteFile(file+".new", b, 0o600); err != nil {
		return err
	}
	return os.Rename(file+".new", file)
}

// ReadContainers reads the records of all containers that ever were, in the order of
// their creation.
func (c Config) ReadContainers() ([]Container, error) {
	entries, err := os.ReadDir(c.Containers()) // sorted, and IDs grow
	if os.IsNotExist(err) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var all []Container
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), ".") {
			continue
		}
		b, err := os.ReadFile(c.record(e.Name()))
		if os.IsNotExist(err) {
			continue // it is being created
		}
		if err != nil {
			return nil, err
		}
		var r Container
		if err := json.Unmarshal(b, &r); err != nil {
			return nil, fmt.Errorf("%s: %w", c.record(e.Name()), err)
		}
		all = append(all, r)
	}
	return all, nil
}

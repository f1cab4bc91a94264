package world

import (
	"fmt"
	"slices"
)

// Container is an LXC container. It only occupies its number.
type Container struct {
	ID         int
	Name, Host string
}

// DefineContainer adds a container without a request.
func (w *World) DefineContainer(c Container) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if err := w.unused(c.ID); err != nil {
		return fmt.Errorf("define container: %w", err)
	}
	w.containers = append(w.containers, c)
	return nil
}

// Containers lists all containers.
func (w *World) Containers() []Container {
	w.mu.Look()
	defer w.mu.Unlock()
	return slices.Clone(w.containers)
}

// unused fails if a VM or a container has that number (pve-cluster, Cluster.pm, check_vmid_unused).
func (w *World) unused(id int) error {
	if old, ok := w.vms[id]; ok {
		return fmt.Errorf("VM %d already exists on node '%s'", id, old.host)
	}
	for _, c := range w.containers {
		if c.ID == id {
			return fmt.Errorf("CT %d already exists on node '%s'", id, c.Host)
		}
	}
	return nil
}

package world

import (
	"errors"
	"maps"
	"slices"
)

// Ceph is the Ceph that the Proxmox hosts run themselves, as it says it is.
type Ceph struct {
	Checks map[string]CephCheck // health checks that fail, by code
	Silent bool                 // its monitors don't answer
}

// CephCheck is a health check that fails.
type CephCheck struct {
	Severity string // "HEALTH_WARN", "HEALTH_ERR"
	Message  string
}

// Health is the worst severity.
func (c Ceph) Health() string {
	order := []string{"HEALTH_OK", "HEALTH_WARN", "HEALTH_ERR"}
	worst := 0
	for _, check := range c.Checks {
		worst = max(worst, slices.Index(order, check.Severity))
	}
	return order[worst]
}

// SetCeph sets up Ceph on the hosts, or changes what it says.
func (w *World) SetCeph(c Ceph) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.ceph = &Ceph{Checks: maps.Clone(c.Checks), Silent: c.Silent}
}

// Ceph is what the hosts' Ceph says. Without one, the error is that of a host on which it is not installed
// (pve-manager, PVE/Ceph/Tools.pm, check_ceph_installed).
func (w *World) Ceph() (Ceph, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case w.ceph == nil:
		return Ceph{}, errors.New("binary not installed: /usr/bin/ceph-mon")
	case w.ceph.Silent:
		return Ceph{}, errors.New("rados_connect failed - Connection timed out") // librados-perl, RADOS.pm
	}
	return Ceph{Checks: maps.Clone(w.ceph.Checks)}, nil
}

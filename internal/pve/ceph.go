package pve

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/internal/foreign"
	"github.com/recast-sh/recast/internal/pve/api"
)

// onCeph says whether storages of that type are on a Ceph.
func onCeph(kind string) bool { return kind == "rbd" || kind == "cephfs" }

// cephStatus is the part that we read of what "ceph status" and "ceph health detail" say (pve-manager,
// PVE/Ceph/Tools.pm, ceph_cluster_status).
type cephStatus struct {
	Health struct {
		Status string
		Checks map[string]struct {
			Severity string
			Summary  struct{ Message string }
		}
	}
}

// The health checks of Ceph (https://docs.ceph.com/en/latest/rados/operations/health-checks/) with which reads or
// writes wait, and those that precede them.
var (
	cephBlocks = []string{"PG_AVAILABILITY", "OBJECT_UNFOUND", "OSD_FULL", "POOL_FULL"}
	cephWarns  = []string{"OSD_BACKFILLFULL", "OSD_NEARFULL", "POOL_BACKFILLFULL", "POOL_NEARFULL", "POOL_NEAR_FULL", "PG_RECOVERY_FULL"}
)

// Flags of OSDMAP_FLAGS, which people set (OSDMap::check_health in Ceph).
var (
	cephStops = []string{"pauserd", "pausewr", "full"}
	cephHolds = []string{"norecover", "nobackfill", "pauserec"}
)

// readCeph asks the hosts' own Ceph how it is, for storages that are on it: those without an address of monitors
// (pve-storage, CephConfig.pm). Where the host is not set up for Ceph, there is no answer.
func (c *Client) readCeph(ctx context.Context, at string, rooms []cluster.StorageRoom) error {
	var configs []storageConfig
	if err := c.conn.Get(ctx, "/storage", &configs); err != nil {
		return err
	}
	own := func(s cluster.StorageRoom) bool {
		return slices.ContainsFunc(configs, func(r storageConfig) bool { return r.Storage == s.Name && onCeph(r.Type) && r.MonHost == "" })
	}
	if !slices.ContainsFunc(rooms, own) {
		return nil
	}
	var status cephStatus
	err := c.conn.Get(ctx, at+"/ceph/status", &status)
	if isNotCeph(err) {
		return nil
	}
	blocked, notes := status.judge()
	switch {
	case api.IsForbidden(err):
		blocked, notes = "", []string{"whether the Proxmox hosts' Ceph takes reads and writes can't be determined: the token needs Sys.Audit or Datastore.Audit on /"}
	case err != nil:
		blocked = foreign.Line("the Proxmox hosts' Ceph does not say how it is (" + err.Error() + ")")
	}
	for i := range rooms {
		if own(rooms[i]) {
			rooms[i].Ceph, rooms[i].Blocked, rooms[i].Notes = true, blocked, notes
		}
	}
	return nil
}

// isNotCeph says whether the host has no Ceph, or none that is set up (PVE/Ceph/Tools.pm, check_ceph_inited).
func isNotCeph(err error) bool {
	failed, ok := errors.AsType[*api.Error](err)
	return ok && (strings.Contains(failed.Said(), "binary not installed: ") || strings.Contains(failed.Said(), "pveceph configuration not initialized"))
}

// judge says why reads or writes wait, and what may become worse.
func (s cephStatus) judge() (blocked string, notes []string) {
	if s.Health.Status == "" {
		return "the Proxmox hosts' Ceph does not say how it is", nil
	}
	var stops []string
	for _, code := range slices.Sorted(maps.Keys(s.Health.Checks)) {
		check := s.Health.Checks[code]
		text := foreign.Line(fmt.Sprintf("%s (%s)", code, cmp.Or(check.Summary.Message, "no reason given")))
		flags := strings.FieldsFunc(check.Summary.Message, func(r rune) bool { return r == ',' || r == ' ' })
		has := func(some []string) bool {
			return code == "OSDMAP_FLAGS" && slices.ContainsFunc(flags, func(flag string) bool { return slices.Contains(some, flag) })
		}
		switch {
		case slices.Contains(cephBlocks, code) || has(cephStops):
			stops = append(stops, text)
		case slices.Contains(cephWarns, code) || has(cephHolds) || check.Severity == "HEALTH_ERR":
			notes = append(notes, "the Proxmox hosts' Ceph says "+text)
		}
	}
	if len(stops) > 0 {
		blocked = "the Proxmox hosts' Ceph lets reads or writes wait: " + strings.Join(stops, ", ")
	}
	return blocked, notes
}

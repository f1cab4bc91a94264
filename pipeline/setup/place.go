package setup

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/internal/config"
	"github.com/recast-sh/recast/internal/fault"
)

// number decides how many nodes of a kind there are.
func (in *newCluster) number(ctx context.Context, n, given *int, least int, q Question) error {
	q.Check = func(answer string) (err error) {
		if *n, err = strconv.Atoi(answer); err != nil || *n < least || *n > 500 {
			return fault.Configf("%s: %q is no number from %d to 500", q.Flag, answer, least)
		}
		return nil
	}
	text := ""
	if given != nil {
		text = strconv.Itoa(*given)
	}
	return in.take(ctx, text, q)
}

// chooseHosts decides on which Proxmox nodes the VMs are: not on those that do not answer. away may be nil.
func (in *newCluster) chooseHosts(ctx context.Context, away *cluster.HostsAway) error {
	all, err := in.src.Proxmox.Hosts(ctx)
	if err != nil {
		return fmt.Errorf("list the Proxmox nodes: %w", err)
	}
	var online, out []string
	for _, h := range all {
		answers := away == nil || !slices.ContainsFunc(away.Hosts, func(a cluster.AwayHost) bool { return a.Name == h.Name })
		if h.Online && answers {
			online = append(online, h.Name)
		} else {
			out = append(out, h.Name)
		}
	}
	slices.SortFunc(online, cluster.CompareKeys)
	for _, host := range in.Hosts {
		if !slices.Contains(online, host) {
			return fault.WithHint(fault.Configf("%s is no Proxmox node that is online", host), "--host: those that are: %s", strings.Join(online, ", "))
		}
	}
	if len(in.Hosts) > 0 {
		return nil
	}
	if len(online) == 0 {
		return fault.Refusedf("no Proxmox node is online")
	}
	if len(out) > 0 {
		in.warn("no VM is to be on %s: offline, or without an answer", strings.Join(out, ", "))
	}
	in.Hosts = online
	return nil
}

// warnOfHosts warns of a host that takes etcd's majority with it.
func (in *newCluster) warnOfHosts(controlPlanes int) {
	for _, host := range in.Hosts {
		var there []string
		for _, n := range in.found.Nodes {
			if n.Machine.ControlPlane && n.VM.Host == host {
				there = append(there, n.Name)
			}
		}
		if controlPlanes > 2 && len(there) > (controlPlanes-1)/2 {
			in.warn("%s are on %s: etcd loses its majority if that host fails", strings.Join(there, ", "), host)
		}
	}
}

// shaped decides what the VMs are made of, except for their storage.
func (in *newCluster) shaped(context.Context) error {
	c := config.DraftClass{Name: "control-plane", Cores: in.Cores, Bridge: in.Bridge}
	if c.Cores < 1 {
		return fault.Configf("--cores: %d is too few", c.Cores)
	}
	text, unit := strings.CutSuffix(in.Memory, "G")
	mib, err := strconv.Atoi(text)
	if unit {
		mib <<= 10
	}
	if c.MemoryMiB = mib; err != nil || mib < 2048 || mib > 16<<20 {
		return fault.Configf("--memory: %q is no amount of memory from 2G on: write it like 4G, or in MiB like 4096", in.Memory)
	}
	if err := c.System.UnmarshalText([]byte(in.SystemDisk)); err != nil || c.System.GiB < 10 {
		return fault.Configf("--system-disk: %q is no size from 10G on: write it like 20G", in.SystemDisk)
	}
	worker := c
	worker.Name = "worker"
	if in.DataDisk != "" {
		worker.Data = &config.DiskSize{}
		if err := worker.Data.UnmarshalText([]byte(in.DataDisk)); err != nil {
			return fault.Configf("--data-disk: %w", err)
		}
	}
	in.classes = []config.DraftClass{c, worker}
	return nil
}

// stored finds the storage for disks.
func (in *newCluster) stored(ctx context.Context) error {
	names, _, err := in.taking(ctx, "images")
	if err != nil {
		return err
	}
	hosts := strings.Join(in.hosts(), ", ")
	switch {
	case in.Storage != "" && !slices.Contains(names, in.Storage):
		return fault.WithHint(fault.Refusedf("storage %s does not take disks of VMs on every Proxmox node of the cluster (%s)", in.Storage, hosts),
			"--storage: one that does: %s; the token needs Datastore.Audit on /storage/%s to see it", strings.Join(names, ", "), in.Storage)
	case len(names) == 0:
		return fault.WithHint(fault.Refusedf("no storage takes disks of VMs on every Proxmox node of the cluster (%s)", hosts),
			"--host leaves a Proxmox node out; the token needs Datastore.Audit on /storage to see storages")
	case in.Storage == "":
		if in.Storage, err = in.choose(ctx, "Storages that take disks of VMs", "Where should the disks be?", "--storage", names, ""); err != nil {
			return err
		}
	}
	for i := range in.classes {
		in.classes[i].Storage = in.Storage
	}
	return nil
}

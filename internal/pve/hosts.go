package pve

import (
	"context"
	"encoding/json"
	"fmt"
	"net/url"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/internal/pve/api"
)

// Hosts lists the nodes of the Proxmox cluster with their readable details. A token
// without Sys.Audit on / sees fewer.
func (c *Client) Hosts(ctx context.Context) ([]cluster.Host, error) {
	hosts, err := c.HostList(ctx)
	if err != nil {
		return nil, err
	}
	g := errgroup.Group{}
	g.SetLimit(api.ReadsAtOnce)
	for i := range hosts {
		if hosts[i].Online {
			g.Go(func() error { c.readHost(ctx, &hosts[i]); return nil })
		}
	}
	return hosts, g.Wait()
}

// HostList is Hosts without the details of each node.
func (c *Client) HostList(ctx context.Context) ([]cluster.Host, error) {
	var hosts []cluster.Host
	var status []struct {
		Type, Name    string
		Online, Local json.RawMessage
	}
	err := c.conn.Get(ctx, "/cluster/status", &status)
	for _, s := range status {
		if s.Type == "node" {
			hosts = append(hosts, cluster.Host{Name: s.Name, Online: toBool(s.Online), Entry: toBool(s.Local)})
		}
	}
	if !api.IsForbidden(err) {
		return hosts, err
	}
	var nodes []struct{ Node, Status string } // every user may see these
	err = c.conn.Get(ctx, "/nodes", &nodes)
	for _, n := range nodes {
		hosts = append(hosts, cluster.Host{Name: n.Node, Online: n.Status != "offline"})
	}
	return hosts, err
}

func (c *Client) readHost(ctx context.Context, h *cluster.Host) {
	at := "/nodes/" + url.PathEscape(h.Name)
	read := func(what string, out any) {
		if err := c.conn.Get(ctx, at+what, out); err != nil {
			h.Errs = append(h.Errs, err)
		}
	}
	var version struct{ Version string }
	read("/version", &version)
	h.Version = version.Version

	asked := time.Now()
	clock, err := c.clock(ctx, h.Name)
	if err != nil {
		h.Errs = append(h.Errs, err)
	} else {
		h.Clock, h.Asked = clock, asked.Add(time.Since(asked)/2)
	}

	var status struct{ RootFS struct{ Avail json.Number } }
	read("/status", &status)
	h.SpoolFree, _ = status.RootFS.Avail.Int64() // 0 if it could not be read; h.Errs then says why

	h.ThinPools, h.ErrPools = thinPools(ctx, c.conn, at)
}

// thinPool is a row of API2/Disks/LVMThin.pm.
type thinPool struct {
	LV, VG   string
	Size     json.Number `json:"lv_size"`
	Used     json.Number `json:"used"`
	MetaSize json.Number `json:"metadata_size"`
	MetaUsed json.Number `json:"metadata_used"`
}

func thinPools(ctx context.Context, c *api.Conn, at string) ([]cluster.ThinPool, error) {
	var rows []thinPool
	if err := c.Get(ctx, at+"/disks/lvmthin", &rows); err != nil {
		return nil, err
	}
	var pools []cluster.ThinPool
	for _, p := range rows {
		pool := cluster.ThinPool{VG: p.VG, Name: p.LV}
		for _, n := range []struct {
			to   *int64
			from json.Number
		}{{&pool.Size, p.Size}, {&pool.Used, p.Used}, {&pool.MetaSize, p.MetaSize}, {&pool.MetaUsed, p.MetaUsed}} {
			value, err := n.from.Int64()
			if err != nil {
				return nil, fmt.Errorf("thin pool %s/%s: %w", p.VG, p.LV, err)
			}
			*n.to = value
		}
		pools = append(pools, pool)
	}
	return pools, nil
}

// Nodes implements images.Shelf.
func (c *Client) Nodes(ctx context.Context) (online, offline []string, err error) {
	var rows []struct{ Node, Status string }
	if err := c.conn.Get(ctx, "/nodes", &rows); err != nil {
		return nil, nil, fmt.Errorf("list hosts: %w", err)
	}
	for _, r := range rows {
		if r.Status == "offline" {
			offline = append(offline, r.Node)
		} else {
			online = append(online, r.Node)
		}
	}
	slices.Sort(online)
	slices.Sort(offline)
	return online, offline, nil
}

// Quorate implements cluster.HostReader. A node outside a cluster is quorate.
func (c *Client) Quorate(ctx context.Context) (bool, error) {
	var rows []struct {
		Type    string          `json:"type"`
		Quorate json.RawMessage `json:"quorate"`
	}
	if err := c.conn.Get(ctx, "/cluster/status", &rows); err != nil {
		return false, err
	}
	nodes := 0
	for _, row := range rows {
		switch row.Type {
		case "cluster":
			return toBool(row.Quorate), nil
		case "node":
			nodes++
		}
	}
	if nodes != 1 {
		return false, fmt.Errorf("the status of the Proxmox cluster shows neither a cluster nor a single node (%d nodes)", nodes)
	}
	return true, nil
}

// FreeMemory implements cluster.HostReader. "used" excludes what Linux can reclaim;
// before Proxmox 9 there is no "available" (API2/Nodes.pm, status).
func (c *Client) FreeMemory(ctx context.Context, host string) (int64, error) {
	var status struct {
		Memory struct{ Total, Used, Available json.Number }
	}
	if err := c.conn.Get(ctx, "/nodes/"+url.PathEscape(host)+"/status", &status); err != nil {
		return 0, err
	}
	m := status.Memory
	if m.Available != "" {
		return bytesOf(m.Available), nil
	}
	return bytesOf(m.Total) - bytesOf(m.Used), nil
}

// readUptime reads how long a host has been up, which requires Sys.Audit on it.
func readUptime(ctx context.Context, c *api.Conn, host string) (uptime, error) {
	var answer struct {
		Uptime  json.Number
		CPUInfo struct {
			HZ json.Number `json:"user_hz"`
		}
	}
	if err := c.Get(ctx, "/nodes/"+url.PathEscape(host)+"/status", &answer); err != nil {
		return uptime{}, err
	}
	seconds, err := answer.Uptime.Float64()
	if err != nil || seconds <= 0 {
		return uptime{}, fmt.Errorf("%s does not report its uptime", host)
	}
	hz, err := answer.CPUInfo.HZ.Float64()
	if err != nil || hz <= 0 {
		hz = userHz
	}
	return uptime{seconds, hz}, nil
}

// clock reads a host's clock, which requires Sys.Audit on it.
func (c *Client) clock(ctx context.Context, host string) (time.Time, error) {
	var answer struct{ Time flexInt }
	if err := c.conn.Get(ctx, "/nodes/"+url.PathEscape(host)+"/time", &answer); err != nil {
		return time.Time{}, err
	}
	if answer.Time <= 0 {
		return time.Time{}, fmt.Errorf("%s does not report its time", host)
	}
	return time.Unix(int64(answer.Time), 0), nil
}

// uptime is how long a host has been up, as a file in its /proc says.
type uptime struct {
	seconds float64
	hz      float64 // ticks per second
}

// ago is the start, in ticks, of a process that began so long ago; 0 if the host was
// not up then.
func (u uptime) ago(d time.Duration) uint64 { return uint64(max(0, u.seconds-d.Seconds()) * u.hz) }

// userHz is the tick rate of a host that does not report it; every Linux for PCs uses it.
const userHz = 100

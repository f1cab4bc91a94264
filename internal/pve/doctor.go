package pve

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/recast-sh/recast/cluster"
)

// Hosts lists the nodes of the Proxmox cluster with their readable details. A token
// without Sys.Audit on / sees fewer.
func (c *Client) Hosts(ctx context.Context) ([]cluster.Host, error) {
	hosts, err := c.HostList(ctx)
	if err != nil {
		return nil, err
	}
	g := errgroup.Group{}
	g.SetLimit(readsAtOnce)
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
	err := c.get(ctx, "/cluster/status", &status)
	for _, s := range status {
		if s.Type == "node" {
			hosts = append(hosts, cluster.Host{Name: s.Name, Online: toBool(s.Online), Entry: toBool(s.Local)})
		}
	}
	if !isForbidden(err) {
		return hosts, err
	}
	var nodes []struct{ Node, Status string } // every user may see these
	err = c.get(ctx, "/nodes", &nodes)
	for _, n := range nodes {
		hosts = append(hosts, cluster.Host{Name: n.Node, Online: n.Status != "offline"})
	}
	return hosts, err
}

func isForbidden(err error) bool {
	e, ok := errors.AsType[*Error](err)
	return ok && e.Status == http.StatusForbidden
}

func (c *Client) readHost(ctx context.Context, h *cluster.Host) {
	at := "/nodes/" + url.PathEscape(h.Name)
	read := func(what string, out any) {
		if err := c.get(ctx, at+what, out); err != nil {
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

	h.ThinPools, h.ErrPools = c.thinPools(ctx, at)
}

// thinPool is a row of API2/Disks/LVMThin.pm.
type thinPool struct {
	LV, VG   string
	Size     json.Number `json:"lv_size"`
	Used     json.Number `json:"used"`
	MetaSize json.Number `json:"metadata_size"`
	MetaUsed json.Number `json:"metadata_used"`
}

func (c *Client) thinPools(ctx context.Context, at string) ([]cluster.ThinPool, error) {
	var rows []thinPool
	if err := c.get(ctx, at+"/disks/lvmthin", &rows); err != nil {
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

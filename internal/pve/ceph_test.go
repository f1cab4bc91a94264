package pve

import (
	"testing"

	"github.com/recast-sh/recast/cluster"
)

// TestRoomOnCeph: only storages on the hosts' own Ceph are judged by it, and only what lets reads or writes wait blocks
// them.
func TestRoomOnCeph(t *testing.T) {
	t.Parallel()
	const off = "the Proxmox hosts' Ceph does not say how it is"
	health := func(checks string) route {
		return data(`{"health":{"status":"HEALTH_WARN","checks":{` + checks + `}}}`)
	}
	check := func(code, severity, message string) string {
		return `"` + code + `":{"severity":"` + severity + `","summary":{"message":"` + message + `","count":1},"detail":[],"muted":false}`
	}
	said := func(text string) string { return "the Proxmox hosts' Ceph lets reads or writes wait: " + text }
	notes := func(texts ...string) (all []string) {
		for _, text := range texts {
			all = append(all, "the Proxmox hosts' Ceph says "+text)
		}
		return all
	}
	cases := map[string]struct {
		answer    route
		elsewhere bool // it is not the hosts' own
		notOurs   bool // nothing is known
		blocked   string
		notes     []string
	}{
		"healthy":         {answer: health("")},
		"other warnings":  {answer: health(check("MON_DOWN", "HEALTH_WARN", "1/3 mons down") + "," + check("OSDMAP_FLAGS", "HEALTH_WARN", "noout,noscrub flag(s) set"))},
		"inactive PGs":    {answer: health(check("PG_AVAILABILITY", "HEALTH_WARN", "Reduced data availability: 3 pgs inactive")), blocked: said("PG_AVAILABILITY (Reduced data availability: 3 pgs inactive)")},
		"unfound objects": {answer: health(check("OBJECT_UNFOUND", "HEALTH_WARN", "1/9 objects unfound")), blocked: said("OBJECT_UNFOUND (1/9 objects unfound)")},
		"full":            {answer: health(check("OSD_FULL", "HEALTH_ERR", "1 full osd(s)") + "," + check("POOL_FULL", "HEALTH_ERR", "1 pool(s) full")), blocked: said("OSD_FULL (1 full osd(s)), POOL_FULL (1 pool(s) full)")},
		"paused":          {answer: health(check("OSDMAP_FLAGS", "HEALTH_WARN", "pauserd,pausewr,noout flag(s) set")), blocked: said("OSDMAP_FLAGS (pauserd,pausewr,noout flag(s) set)")},
		"the flag full":   {answer: health(check("OSDMAP_FLAGS", "HEALTH_ERR", "full flag(s) set")), blocked: said("OSDMAP_FLAGS (full flag(s) set)")},
		"nearly full":     {answer: health(check("OSD_NEARFULL", "HEALTH_WARN", "1 nearfull osd(s)")), notes: notes("OSD_NEARFULL (1 nearfull osd(s))")},
		"no recovery":     {answer: health(check("OSDMAP_FLAGS", "HEALTH_WARN", "norecover flag(s) set")), notes: notes("OSDMAP_FLAGS (norecover flag(s) set)")},
		"another error":   {answer: health(check("PG_DAMAGED", "HEALTH_ERR", "1 pg inconsistent")), notes: notes("PG_DAMAGED (1 pg inconsistent)")},
		"no health":       {answer: data(`{}`), blocked: off},
		"not installed":   {answer: raw("500 binary not installed: /usr/bin/ceph-mon", ""), notOurs: true},
		"not set up":      {answer: raw("500 pveceph configuration not initialized - missing '/etc/pve/ceph.conf'", ""), notOurs: true},
		"no monitor":      {answer: raw("500 rados_connect failed - Connection timed out", ""), blocked: off + " (GET /nodes/pve1/ceph/status: 500 rados_connect failed - Connection timed out)"},
		"another Ceph":    {answer: raw("500 it was asked", ""), elsewhere: true, notOurs: true},
		"not for the token": {answer: raw("403 Permission check failed (/, Sys.Audit|Datastore.Audit)", ""), notes: []string{
			"whether the Proxmox hosts' Ceph takes reads and writes can't be determined: the token needs Sys.Audit or Datastore.Audit on /",
		}},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			onNode(t, func(t *testing.T, pve1 *fake, c *Client) {
				pve1.On("GET /nodes/pve1/storage?content=images", data(`[{"storage":"dir","type":"dir","active":1,"total":100,"avail":60},{"storage":"vms","type":"rbd","active":1,"total":100,"avail":60}]`))
				monitors := ""
				if tc.elsewhere {
					monitors = `,"monhost":"10.0.0.1 10.0.0.2"`
				}
				pve1.On("GET /storage", data(`[{"storage":"vms","type":"rbd"`+monitors+`},{"storage":"dir","type":"dir"}]`))
				pve1.On("GET /nodes/pve1/ceph/status", tc.answer)
				got, err := c.Room(t.Context(), "pve1")
				must(t, err)
				want := []cluster.StorageRoom{
					{Name: "dir", Active: true, Total: 100, Free: 60},
					{Name: "vms", Active: true, Total: 100, Free: 60, Ceph: !tc.notOurs, Blocked: tc.blocked, Notes: tc.notes},
				}
				same(t, "storages", want, got.Storages)
			})
		})
	}
}

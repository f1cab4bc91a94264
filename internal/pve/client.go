// Package pve implements what the domain needs of Proxmox VE with one [Client]. It waits
// for tasks itself, finds out what became of changes whose answer was lost, and turns
// what Proxmox shows into the domain's terms.
package pve

import (
	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/images"
	"github.com/recast-sh/recast/internal/pve/api"
)

// Client talks to one Proxmox cluster. It is safe for concurrent use. Its calls are
// those of its roles, which share one connection; each role is in the file of its name.
type Client struct {
	conn *api.Conn

	*access    // what the token may do
	*hosts     // the nodes of the Proxmox cluster
	*storages  // storages and the volumes on them
	*vms       // VMs: lists, configurations, states
	*ties      // what Proxmox keeps for a VM outside of its configuration
	*firewalls // VMs' own firewalls
	*ha        // VMs in Proxmox HA
	*editor    // changes of VMs
	*power     // switching VMs on and off
	*migrator  // moving VMs to other hosts
	*tasks     // tasks of Proxmox
	*isos      // ISOs and disk images on storages
	*users     // who refers to files
}

var (
	_ cluster.Proxmox = (*Client)(nil)
	_ images.Store    = (*Client)(nil)
	_ images.Shelf    = (*Client)(nil)

	_ images.Importer = (*Client)(nil)
)

// New returns a client without connecting. The caller closes it.
func New(o api.Options) (*Client, error) {
	to, err := api.Connect(o)
	if err != nil {
		return nil, err
	}
	c := &Client{conn: to, access: &access{to}, hosts: &hosts{to}, storages: &storages{to}, firewalls: &firewalls{to}}
	c.vms = &vms{Conn: to, hosts: c.hosts}
	c.tasks = &tasks{Conn: to, hosts: c.hosts}
	c.ties = &ties{to, c.hosts, c.storages, c.vms, c.firewalls, c.tasks}
	c.users = &users{to, c.access, c.hosts, c.vms}
	changes := &changer{Conn: to, tasks: c.tasks}
	c.ha = &ha{to, changes}
	c.editor = &editor{c.storages, c.vms, changes}
	c.power = &power{to, c.vms, changes}
	c.migrator = &migrator{to, c.vms, changes}
	c.isos = &isos{to, c.access, c.hosts, c.storages, c.tasks, changes}
	return c, nil
}

// Close closes the connections to Proxmox. No request may be in flight.
func (c *Client) Close() { c.conn.Close() }

// String names the client without its secret.
func (c *Client) String() string { return c.conn.String() }

// GoString keeps %#v from showing the secret.
func (c *Client) GoString() string { return c.conn.String() }

// Remember makes the client read the token's privileges, the hosts and the storages'
// contents only once, for a command that changes nothing. VMs and tasks are still
// read each time. Call it before the client is used.
func (c *Client) Remember() { c.conn.Remember() }

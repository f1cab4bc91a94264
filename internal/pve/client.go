// Package pve implements what the domain needs of Proxmox VE with one [Client]. It waits
// for tasks itself, finds out what became of changes whose answer was lost, and turns
// what Proxmox shows into the domain's terms.
package pve

import (
	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/images"
	"github.com/recast-sh/recast/internal/pve/api"
)

// Client talks to one Proxmox cluster. It is safe for concurrent use.
type Client struct {
	conn    *api.Conn
	tasks   *tasks
	changes *changer
	seen    lastSeen
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
	tasks := &tasks{Conn: to}
	return &Client{conn: to, tasks: tasks, changes: &changer{Conn: to, tasks: tasks}}, nil
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

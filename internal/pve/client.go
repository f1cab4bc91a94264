// Package pve talks to the Proxmox VE API. It is the only package that knows what
// Proxmox's answers look like: it waits for tasks itself, and turns wordings,
// statuses and lost answers into errors that callers can branch on.
package pve

import (
	"context"
	"crypto/x509"
	"net"
	"net/http"
	"time"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/images"
)

// Options say where the Proxmox cluster is and how to prove who we are.
type Options struct {
	Endpoints   []string       // "https://pve1.example:8006", several nodes of one cluster; tried in order
	Token       cluster.Secret // "user@realm!id=uuid"
	Fingerprint string         // SHA-256 of the served certificate; several separated by commas; "": CAFile, RootCAs or the system's
	CAFile      string         // PEM file; wins over RootCAs
	RootCAs     *x509.CertPool
	Dial        func(ctx context.Context, network, addr string) (net.Conn, error) // nil: the machine's network
	Poll        time.Duration                                                     // pause between two polls of a task or a VM, shorter at the start of a task; 0: 1 s
	Wrap        func(http.RoundTripper) http.RoundTripper                         // wraps what carries each attempt at a request; nil: nothing
	Warn        func(text string)                                                 // receives the warnings of tasks that succeed; may be nil
}

// Client talks to one Proxmox cluster. It is safe for concurrent use. Its calls are
// those of its roles, which share one connection; each role is in the file of its name.
type Client struct {
	conn *conn

	*access    // what the token may do
	*hosts     // the nodes of the Proxmox cluster
	*storages  // storages and the volumes on them
	*vms       // VMs: lists, configurations, states
	*ties      // what Proxmox keeps for a VM outside of its configuration
	*firewalls // VMs' own firewalls
	*ha        // VMs in Proxmox HA
	*editor    // changes of VMs
	*power     // switching VMs on and off
	*tasks     // tasks of Proxmox
	*isos      // ISOs on storages
	*users     // who refers to files
}

var (
	_ cluster.Proxmox = (*Client)(nil)
	_ images.Store    = (*Client)(nil)
	_ images.Shelf    = (*Client)(nil)
)

// New returns a client without connecting. The caller closes it.
func New(o Options) (*Client, error) {
	to, err := newConn(o)
	if err != nil {
		return nil, err
	}
	c := &Client{conn: to, access: &access{to}, hosts: &hosts{to}, storages: &storages{to}, firewalls: &firewalls{to}}
	c.vms = &vms{conn: to, hosts: c.hosts}
	c.tasks = &tasks{conn: to, hosts: c.hosts, warn: o.Warn}
	c.ties = &ties{to, c.hosts, c.storages, c.vms, c.firewalls, c.tasks}
	c.users = &users{to, c.access, c.hosts, c.vms}
	changes := &changer{conn: to, tasks: c.tasks}
	c.ha = &ha{to, changes}
	c.editor = &editor{c.storages, c.vms, changes}
	c.power = &power{to, c.vms, changes}
	c.isos = &isos{to, c.access, c.hosts, c.storages, c.tasks, changes}
	return c, nil
}

// Close closes the connections to Proxmox. No request may be in flight.
func (c *Client) Close() { c.conn.transport.close() }

// String names the client without its secret.
func (c *Client) String() string { return c.conn.String() }

// GoString keeps %#v from showing the secret.
func (c *Client) GoString() string { return c.conn.String() }

// Remember makes the client read the token's privileges, the hosts and the storages'
// contents only once, for a command that changes nothing. VMs and tasks are still
// read each time. Call it before the client is used.
func (c *Client) Remember() { c.conn.memory = &memory{answers: map[string]*onceRead{}} }

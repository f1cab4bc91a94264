package simtest

import (
	"errors"
	"os"
	"path/filepath"
	"regexp"
)

var vmidsLine = regexp.MustCompile(`(?m)^( *vmids:).*$`)

// WithRange is another process with its own recast.yaml in dir for the same cluster, with
// other proxmox.vmids, or the same if vmids is "". It has no journal of earlier runs.
func (l *Lab) WithRange(dir, vmids string) (*Client, error) {
	c := l.Client()
	c.Run, c.Dir = "20000101-0000-beef", dir
	err := os.CopyFS(dir, os.DirFS(l.Dir))
	return c, errors.Join(err, os.RemoveAll(filepath.Join(dir, ".recast")), c.setRange(vmids))
}

func (c *Client) setRange(vmids string) error {
	if vmids == "" {
		return nil
	}
	file := filepath.Join(c.Dir, "recast.yaml")
	b, err := os.ReadFile(file)
	if err == nil && !vmidsLine.Match(b) {
		err = errors.New("recast.yaml has no proxmox.vmids")
	}
	if err != nil {
		return err
	}
	return os.WriteFile(file, vmidsLine.ReplaceAll(b, []byte("${1} "+vmids)), 0o600)
}

package pve

import (
	"context"
	"fmt"
	"slices"
)

// MayImport implements images.Importer: the storage must have the content type, which
// Proxmox has since 8.3, and be readable (pve-storage, Storage.pm, check_volume_access).
// That the disk's own storage has space for it is a matter of that storage.
func (c *Client) MayImport(ctx context.Context, host, storage string) (why string, err error) {
	info, err := c.Storage(ctx, host, storage)
	if err != nil {
		return "", err
	}
	if !slices.Contains(info.Content, importContent) {
		return fmt.Sprintf("storage %q does not have the content type %q, which Proxmox VE has since 8.3: `pvesm set %s --content` sets the types", storage, importContent, storage), nil
	}
	path := "/storage/" + storage
	held, err := c.Permissions(ctx, path)
	if err != nil {
		return "", err
	}
	for _, privilege := range []string{"Datastore.Audit", "Datastore.AllocateSpace", "Datastore.Allocate"} {
		if _, has := held[privilege]; has {
			return "", nil
		}
	}
	return "the token has neither Datastore.Audit nor Datastore.AllocateSpace on " + path, nil
}

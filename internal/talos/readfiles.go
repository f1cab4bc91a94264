package talos

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/netip"
	"path"
	"strings"
	"time"

	machineapi "github.com/siderolabs/talos/pkg/machinery/api/machine"
	"google.golang.org/grpc/codes"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/internal/foreign"
)

// fileSilence is how long a machine may stay silent while it sends or lists files.
const fileSilence = 30 * time.Second

// Files opens the files of the machine at addr, over one connection.
func (c *Client) Files(
	ctx context.Context, addr netip.Addr, uuid string, look func(context.Context, cluster.MachineFiles) error,
) error {
	return c.callPatient(ctx, addr.String(), func(ctx context.Context, s session, wait patience) error {
		if err := checkUUID(ctx, s, uuid, "none of its files was read"); err != nil {
			return err
		}
		wait(fileSilence)
		return look(ctx, machineFiles{s, wait})
	})
}

// machineFiles are the files of the machine at the other end of a session.
type machineFiles struct {
	session
	wait patience
}

var _ cluster.MachineFiles = machineFiles{}

// List lists a directory without itself.
func (m machineFiles) List(ctx context.Context, dir string, deep bool, each func(cluster.MachineFile) error) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel() // ends a stream that is not read to its end
	stream, err := m.LS(ctx, &machineapi.ListRequest{Root: dir, Recurse: deep})
	if err != nil {
		return fmt.Errorf("list %s: %w", dir, missing(err))
	}
	for {
		f, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("list %s: %w", dir, missing(err))
		}
		m.wait(fileSilence)
		if text := f.GetError(); text != "" {
			return fmt.Errorf("list %s: %s", dir, foreign.Line(text))
		}
		if f.GetRelativeName() == "." {
			continue
		}
		if err := each(cluster.MachineFile{
			// Its name has the links in dir resolved.
			Path: path.Join(dir, f.GetRelativeName()), Mode: fs.FileMode(f.GetMode()), SizeBytes: f.GetSize(), Link: f.GetLink(),
		}); err != nil {
			return err
		}
	}
}

// missing turns a machine's error about a missing directory into
// cluster.ErrNotFound. It has no code, only the kernel's message.
func missing(err error) error {
	err = answer(err)
	e, ok := errors.AsType[*answerError](err)
	if ok && e.code == codes.Unknown && strings.HasSuffix(e.text, ": no such file or directory") {
		return fmt.Errorf("%w: %w", cluster.ErrNotFound, err)
	}
	return err
}

// Read reads a file of a known size: a machine that fails to read on ends the stream
// as if the file had ended (pkg/chunker/stream of Talos), and one that sends too
// much is cut off.
func (m machineFiles) Read(ctx context.Context, name string, sizeBytes int64, w io.Writer) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := m.MachineClient.Read(ctx, &machineapi.ReadRequest{Path: name})
	if err != nil {
		return fmt.Errorf("read %s: %w", name, unreadable(err))
	}
	for read := int64(0); ; {
		data, err := stream.Recv()
		switch {
		case errors.Is(err, io.EOF) && read < sizeBytes:
			return fmt.Errorf("read %s: it ended after %d of %d bytes", name, read, sizeBytes)
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return fmt.Errorf("read %s: %w", name, unreadable(err))
		}
		m.wait(fileSilence)
		if read += int64(len(data.GetBytes())); read > sizeBytes {
			return fmt.Errorf("read %s: it is longer than the %d bytes listed", name, sizeBytes)
		}
		if _, err := w.Write(data.GetBytes()); err != nil {
			return fmt.Errorf("read %s: %w", name, err)
		}
	}
}

// unreadable names the role that reading files requires, if it is missing.
func unreadable(err error) error {
	err = answer(err)
	if e, ok := errors.AsType[*answerError](err); ok && e.code == codes.PermissionDenied {
		return fmt.Errorf("it takes a talosconfig with the role os:admin to read a node's files: %w", err)
	}
	return err
}

package talos

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"iter"
	"math"
	"net/netip"
	"path"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cosi-project/runtime/api/v1alpha1"
	"github.com/cosi-project/runtime/pkg/resource"
	"github.com/cosi-project/runtime/pkg/resource/protobuf"
	"github.com/cosi-project/runtime/pkg/safe"
	"github.com/cosi-project/runtime/pkg/state"
	machineapi "github.com/siderolabs/talos/pkg/machinery/api/machine"
	"github.com/siderolabs/talos/pkg/machinery/client"
	"github.com/siderolabs/talos/pkg/machinery/resources/hardware"
	"github.com/siderolabs/talos/pkg/machinery/resources/runtime"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/observe"
	"github.com/recast-sh/recast/internal/foreign"
)

// get reads one resource; found is false if the machine does not have the resource, or if its Talos, older or newer,
// does not know the kind.
func get[T resource.Resource](ctx context.Context, s session, ptr resource.Pointer) (r T, found bool, err error) {
	r, err = safe.StateGet[T](ctx, s.COSI, ptr)
	switch {
	case state.IsNotFoundError(err), unknownKind(err):
		return r, false, nil
	case err != nil:
		return r, false, fmt.Errorf("read %s: %w", ptr.Type(), answer(err))
	}
	return r, true, nil
}

// list reads all resources of a kind; none if the machine does not know the kind.
func list[T resource.Resource](ctx context.Context, s session, kind resource.Pointer) ([]T, error) {
	rs, err := safe.StateList[T](ctx, s.COSI, kind)
	switch {
	case unknownKind(err):
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("list %s: %w", kind.Type(), answer(err))
	}
	all := make([]T, 0, rs.Len())
	for r := range rs.All() {
		all = append(all, r)
	}
	return all, nil
}

func byID[T resource.Resource](all []T, id resource.ID) (r T, found bool) {
	i := slices.IndexFunc(all, func(r T) bool { return r.Metadata().ID() == id })
	if i < 0 {
		return r, false
	}
	return all[i], true
}

// unknownKind reports whether the machine's Talos does not know the kind of resource. Talos then answers as for a
// missing permission (internal/app/resources/access.go).
func unknownKind(err error) bool {
	st := client.Status(err)
	return st != nil && st.Code() == codes.PermissionDenied &&
		strings.HasPrefix(st.Message(), `resource type "`) && strings.HasSuffix(st.Message(), `" is not supported`)
}

// wireSpec returns the specification of a resource that was not decoded.
func wireSpec(r resource.Resource) (*v1alpha1.Spec, error) {
	wire, ok := r.(*protobuf.Resource)
	if !ok {
		return nil, fmt.Errorf("unexpected type %T", r)
	}
	message, err := wire.Marshal()
	if err != nil {
		return nil, errors.New("the message can't be read")
	}
	return message.GetSpec(), nil
}

// maxFile exceeds any file that is read from a machine.
const maxFile = 1 << 20

func file(ctx context.Context, s session, path string) (content []byte, err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("read %s: %w", path, answer(err))
		}
	}()
	r, err := s.Read(ctx, path)
	if err != nil {
		return nil, err
	}
	content, err = io.ReadAll(io.LimitReader(r, maxFile+1))
	if err == nil && len(content) > maxFile {
		err = errors.New("the file is too long")
	}
	_ = r.Close() // ending early is not an error
	return content, err
}

// session is a connection to one machine. recast never re-establishes a session: all reads through it come from the
// same boot of the same machine.
type session struct {
	*client.Client
	blank bool // in maintenance mode: no credentials, no secrets
	// fingerprint is the fingerprint of the machine's certificate; nil unless the machine is blank.
	fingerprint *atomic.Pointer[string]
}

// inParallel runs all reads and returns the first error in the order of the reads, because which read fails first is
// random.
func inParallel(reads ...func() error) error {
	errs := make([]error, len(reads))
	var all sync.WaitGroup
	for i, read := range reads {
		all.Go(func() { errs[i] = read() })
	}
	all.Wait()
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

// getting is get for inParallel; use is called if the machine has the resource.
func getting[T resource.Resource](ctx context.Context, s session, ptr resource.Pointer, use func(T)) func() error {
	return func() error {
		r, found, err := get[T](ctx, s, ptr)
		if found {
			use(r)
		}
		return err
	}
}

func listing[T resource.Resource](ctx context.Context, s session, kind resource.Pointer, into *[]T) func() error {
	return func() (err error) {
		*into, err = list[T](ctx, s, kind)
		return err
	}
}

// single returns the only answer, which comes from the machine that was asked. The text of asked begins the errors.
func single[R interface{ GetMessages() []T }, T any](asked string, answers R, err error) (one T, _ error) {
	if err != nil {
		return one, fmt.Errorf("%s: %w", asked, answer(err))
	}
	all := answers.GetMessages()
	if len(all) != 1 {
		return one, fmt.Errorf("%s: %d machines answered instead of one", asked, len(all))
	}
	return all[0], nil
}

// readUUID reads the SMBIOS UUID, lower-case.
func readUUID(ctx context.Context, s session) (string, error) {
	system, found, err := get[*hardware.SystemInformation](ctx, s, hardware.NewSystemInformation(hardware.SystemInformationID).Metadata())
	if err != nil || !found {
		return "", err
	}
	return strings.ToLower(system.TypedSpec().UUID), nil
}

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

type machineFiles struct {
	session
	wait patience
}

var _ cluster.MachineFiles = machineFiles{}

// List lists the contents of a directory, without the directory itself.
func (m machineFiles) List(ctx context.Context, dir string, deep bool, each func(cluster.MachineFile) error) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel() // ends a stream that is not read to its end
	for f, err := range received(m.LS(ctx, &machineapi.ListRequest{Root: dir, Recurse: deep})) {
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
			// The full name has the links in dir resolved.
			Path: path.Join(dir, f.GetRelativeName()), Mode: fs.FileMode(f.GetMode()), SizeBytes: f.GetSize(), Link: f.GetLink(),
		}); err != nil {
			return err
		}
	}
	return nil
}

// received yields the messages of a stream until its end, or its error.
func received[T any](stream grpc.ServerStreamingClient[T], err error) iter.Seq2[*T, error] {
	return func(yield func(*T, error) bool) {
		if err != nil {
			yield(nil, err)
			return
		}
		for {
			message, err := stream.Recv()
			if errors.Is(err, io.EOF) || !yield(message, err) || err != nil {
				return
			}
		}
	}
}

// missing turns a machine's error about a missing directory into cluster.ErrNotFound. The error has no code of its
// own, only the kernel's message.
func missing(err error) error {
	err = answer(err)
	e, ok := errors.AsType[*answerError](err)
	if ok && e.code == codes.Unknown && strings.HasSuffix(e.text, ": no such file or directory") {
		return fmt.Errorf("%w: %w", cluster.ErrNotFound, err)
	}
	return err
}

// Read reads a file of a known size. A machine that fails to read on ends the stream as if the file had ended
// (pkg/chunker/stream of Talos). A machine that sends too much is cut off.
func (m machineFiles) Read(ctx context.Context, name string, sizeBytes int64, w io.Writer) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	read := int64(0)
	for data, err := range received(m.MachineClient.Read(ctx, &machineapi.ReadRequest{Path: name})) {
		if err != nil {
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
	if read < sizeBytes {
		return fmt.Errorf("read %s: it ended after %d of %d bytes", name, read, sizeBytes)
	}
	return nil
}

// unreadable names the role that reading files requires, if it is missing.
func unreadable(err error) error {
	err = answer(err)
	if answeredWith(codes.PermissionDenied, err) {
		return fmt.Errorf("it takes a talosconfig with the role os:admin to read a node's files: %w", err)
	}
	return err
}

// Claims reads what the machine at addr reports about its running image. A reader's role suffices; what requires an
// admin is omitted.
func (c *Client) Claims(ctx context.Context, addr netip.Addr, uuid string) (observe.Claims, error) {
	return ask(ctx, c, addr, func(ctx context.Context, s session) (claims observe.Claims, err error) {
		if err = checkUUID(ctx, s, uuid, "what it says was not read"); err == nil {
			err = readEach(ctx, s, &claims, claimVersion, claimLayers, claimFactory, claimBoot, claimCmdline)
		}
		return claims, err
	})
}

func claimVersion(ctx context.Context, s session, c *observe.Claims) error {
	var m cluster.Machine
	err := readVersion(ctx, s, &m)
	c.TalosVersion, c.Arch, c.Platform = m.TalosVersion, m.Arch, m.Platform
	return err
}

func claimLayers(ctx context.Context, s session, c *observe.Claims) error {
	all, err := list[*runtime.ExtensionStatus](ctx, s, runtime.NewExtensionStatus(runtime.NamespaceName, "").Metadata())
	if err != nil {
		return err
	}
	// The IDs are the layers' numbers ("10" comes after "9"), except for imager's own last layer, which has a name.
	slices.SortStableFunc(all, func(a, b *runtime.ExtensionStatus) int {
		return cmp.Or(cmp.Compare(layerNumber(a), layerNumber(b)), cmp.Compare(a.Metadata().ID(), b.Metadata().ID()))
	})
	for _, e := range all {
		about := e.TypedSpec().Metadata
		c.Layers = append(c.Layers, observe.ExtensionLayer{Name: about.Name, Version: about.Version, Author: about.Author, ExtraInfo: about.ExtraInfo})
	}
	return nil
}

func layerNumber(e *runtime.ExtensionStatus) int {
	n, err := strconv.Atoi(e.Metadata().ID())
	if err != nil {
		return math.MaxInt
	}
	return n
}

func claimFactory(ctx context.Context, s session, c *observe.Claims) error {
	return getting(ctx, s, runtime.NewImageFactorySchematic(runtime.NamespaceName, runtime.ImageFactorySchematicID).Metadata(), func(f *runtime.ImageFactorySchematic) {
		c.Factory = &observe.FactoryClaim{SchematicID: f.TypedSpec().SchematicID, Flavor: f.TypedSpec().Flavor, URL: f.TypedSpec().APIURL}
	})()
}

func claimBoot(ctx context.Context, s session, c *observe.Claims) error {
	var m cluster.Machine
	err := inParallel(
		getting(ctx, s, runtime.NewBootedEntrySpec().Metadata(), func(entry *runtime.BootedEntry) {
			c.Booted.Entry = strings.ToLower(entry.TypedSpec().BootedEntry)
		}),
		getting(ctx, s, runtime.NewSecurityStateSpec(runtime.NamespaceName).Metadata(), func(security *runtime.SecurityState) {
			c.Booted.UKI, c.Booted.SecureBoot = new(security.TypedSpec().BootedWithUKI), security.TypedSpec().SecureBoot
		}),
		func() error { return readNextBoot(ctx, s, &m) },
	)
	c.Booted.Next = m.NextBoot
	return err
}

// lockArg is the kernel argument that carries a lock hash.
const lockArg = "recast.lock="

// claimCmdline keeps only recast's own argument of the command line: the other arguments may contain tokens.
func claimCmdline(ctx context.Context, s session, c *observe.Claims) error {
	text, known, err := cmdline(ctx, s)
	c.Booted.Cmdline = known
	for arg := range strings.FieldsSeq(text) {
		if hash, ours := strings.CutPrefix(strings.Trim(arg, `"`), lockArg); ours {
			c.Booted.Locks = append(c.Booted.Locks, hash)
		}
	}
	return err
}

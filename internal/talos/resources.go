package talos

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/cosi-project/runtime/pkg/resource"
	"github.com/cosi-project/runtime/pkg/safe"
	"github.com/cosi-project/runtime/pkg/state"
	"github.com/siderolabs/talos/pkg/machinery/client"
	"github.com/siderolabs/talos/pkg/machinery/resources/hardware"
	"google.golang.org/grpc/codes"
)

// get reads one resource; found is false if the machine does not have it, or its
// Talos, older or newer, does not know the kind.
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

// unknownKind reports whether the machine's Talos does not know the kind of
// resource. It then answers as for a missing permission
// (internal/app/resources/access.go).
func unknownKind(err error) bool {
	st := client.Status(err)
	return st != nil && st.Code() == codes.PermissionDenied &&
		strings.HasPrefix(st.Message(), `resource type "`) && strings.HasSuffix(st.Message(), `" is not supported`)
}

// maxFile exceeds any file that is read from a machine.
const maxFile = 1 << 20

// file reads a file of the machine.
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

// session is a connection to one machine. It is never re-established: all reads
// through it come from the same boot of the same machine.
type session struct {
	*client.Client
	blank bool // in maintenance mode: no credentials, no secrets
	// fingerprint is that of the machine's certificate; nil unless it is blank.
	fingerprint *atomic.Pointer[string]
}

// inParallel runs all reads and returns the first error in their order, because which of
// them fails first is random.
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

// listing is list for inParallel.
func listing[T resource.Resource](ctx context.Context, s session, kind resource.Pointer, into *[]T) func() error {
	return func() (err error) {
		*into, err = list[T](ctx, s, kind)
		return err
	}
}

// single returns the only answer, of the machine that was asked.
func single[T any](answers []T) (one T, err error) {
	if len(answers) != 1 {
		return one, fmt.Errorf("%d machines answered instead of one", len(answers))
	}
	return answers[0], nil
}

// readUUID reads the SMBIOS UUID, lower-case.
func readUUID(ctx context.Context, s session) (string, error) {
	system, found, err := get[*hardware.SystemInformation](ctx, s, hardware.NewSystemInformation(hardware.SystemInformationID).Metadata())
	if err != nil || !found {
		return "", err
	}
	return strings.ToLower(system.TypedSpec().UUID), nil
}

package talosapi

import (
	"fmt"

	"github.com/siderolabs/talos/pkg/machinery/api/common"
	"google.golang.org/grpc/encoding"
	grpcproto "google.golang.org/grpc/encoding/proto"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
)

// frame is a message that is forwarded unchanged.
type frame struct{ raw []byte }

// codec is gRPC's, but passes frames through.
type codec struct{ encoding.CodecV2 }

func newCodec() codec { return codec{encoding.GetCodecV2(grpcproto.Name)} }

// Marshal implements encoding.CodecV2.
func (c codec) Marshal(v any) (mem.BufferSlice, error) {
	if f, ok := v.(*frame); ok {
		return mem.BufferSlice{mem.SliceBuffer(f.raw)}, nil
	}
	return c.CodecV2.Marshal(v)
}

// Unmarshal implements encoding.CodecV2.
func (c codec) Unmarshal(data mem.BufferSlice, v any) error {
	if f, ok := v.(*frame); ok {
		f.raw = data.Materialize()
		return nil
	}
	return c.CodecV2.Unmarshal(data, v)
}

// from adds the machine's name to the one message of an answer: every response of the API
// that can be joined has messages as field 1, whose field 1 is the metadata.
func (f *frame) from(target string) (*frame, error) {
	field, kind, n := protowire.ConsumeTag(f.raw)
	if n < 0 || field != 1 || kind != protowire.BytesType {
		return nil, fmt.Errorf("unexpected message format: %d", field)
	}
	_, m := protowire.ConsumeVarint(f.raw[n:]) // its length
	if m < 0 {
		return nil, protowire.ParseError(m)
	}
	message := (&frame{raw: f.raw[n+m:]}).named(target)
	return &frame{raw: protowire.AppendBytes(protowire.AppendTag(nil, 1, protowire.BytesType), message.raw)}, nil
}

// named is a message of a stream with its machine's name.
func (f *frame) named(target string) *frame {
	//lint:ignore SA1019 answers are joined by it
	return &frame{raw: append(f.raw[:len(f.raw):len(f.raw)], marshal(&common.Empty{Metadata: &common.Metadata{Hostname: target}})...)}
}

// failed is the answer in place of a machine that did not answer.
func failed(target string, err error, stream bool) *frame {
	//lint:ignore SA1019 answers are joined by it
	e := &common.Empty{Metadata: &common.Metadata{Hostname: target, Error: err.Error(), Status: status.Convert(err).Proto()}}
	if stream {
		return &frame{raw: marshal(e)}
	}
	return &frame{raw: marshal(&common.EmptyResponse{Messages: []*common.Empty{e}})}
}

func marshal(m proto.Message) []byte {
	b, _ := proto.Marshal(m) // our strings are valid
	return b
}

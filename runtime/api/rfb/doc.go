// Package rfb is a small client of the Remote Framebuffer protocol (RFC 6143),
// by which VNC servers show a display.
//
// It owns what a photograph of a display and simple input need: the handshake of
// versions 3.3, 3.7 and 3.8 with security types None and VNC, whole frames in
// raw encoding, keys and pointer. Everything that makes a viewer pleasant
// (compression, partial updates, cursors, clipboard) it leaves out, and it never
// asks a server for it. Connecting is its caller's.
//
// # Invariants
//
//   - What a server says is not trusted: sizes are bounded before memory is
//     taken, and rectangles must lie in the frame.
//   - A connection is given up on the first error, and when a context ends.
//
// # Concurrency
//
// A Client is used by one goroutine at a time.
package rfb

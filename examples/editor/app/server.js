// A document that several people edit at once. It lives in this process's memory
// and nowhere else. One message of a client is one edit:
//
//   {"version": 3, "at": 5, "remove": 2, "insert": "text"}
//
// made on the version that the client saw. The server moves it past the edits
// that came in between, applies it, and tells everybody, its author included.
"use strict";
const fs = require("fs");
const http = require("http");
const path = require("path");
const { WebSocketServer } = require("ws");

const port = 5737;
const started = Date.now() + "-" + process.pid; // another process has another
let text = "";
const edits = []; // edits[v] made version v+1 of version v

const server = http.createServer((request, response) => {
  if (request.url === "/state") {
    response.setHeader("Content-Type", "application/json");
    response.end(JSON.stringify({ started, text, version: edits.length, clients: sockets.clients.size }));
    return;
  }
  if (request.url !== "/") {
    response.statusCode = 404;
    response.end("not found\n");
    return;
  }
  response.setHeader("Content-Type", "text/html; charset=utf-8");
  response.end(fs.readFileSync(path.join(__dirname, "index.html")));
});

const sockets = new WebSocketServer({ server, maxPayload: 64 * 1024 });

// moved is edit a, made beside edit b, as it is to be applied after b.
function moved(a, b) {
  const end = b.at + b.remove;
  if (end <= a.at) return { ...a, at: a.at + b.insert.length - b.remove };
  if (b.at >= a.at + a.remove) return a;
  // Both remove some of the same text: it goes once, and b's insertion with it
  // where a's removal goes across.
  const both = Math.min(a.at + a.remove, end) - Math.max(a.at, b.at);
  const across = a.at <= b.at && a.at + a.remove >= end;
  return {
    ...a,
    at: a.at < b.at ? a.at : b.at + (across ? 0 : b.insert.length),
    remove: a.remove - both + (across ? b.insert.length : 0),
  };
}

function valid(e) {
  return e && Number.isInteger(e.version) && e.version >= 0 && e.version <= edits.length &&
    Number.isInteger(e.at) && e.at >= 0 && Number.isInteger(e.remove) && e.remove >= 0 && typeof e.insert === "string";
}

let people = 0;
sockets.on("connection", (socket) => {
  const author = ++people;
  socket.send(JSON.stringify({ hello: author, text, version: edits.length }));
  socket.on("error", () => {});
  socket.on("message", (data) => {
    let edit;
    try {
      edit = JSON.parse(data);
    } catch {
      edit = null;
    }
    if (!valid(edit)) {
      socket.close(1007, "no edit");
      return;
    }
    let e = { at: edit.at, remove: edit.remove, insert: edit.insert };
    for (const b of edits.slice(edit.version)) e = moved(e, b);
    e.at = Math.min(e.at, text.length);
    e.remove = Math.min(e.remove, text.length - e.at);
    text = text.slice(0, e.at) + e.insert + text.slice(e.at + e.remove);
    edits.push(e);
    const news = JSON.stringify({ author, version: edits.length, ...e });
    for (const s of sockets.clients) if (s.readyState === s.OPEN) s.send(news);
  });
});

server.listen(port, () => console.log(`listening on ${port}`));

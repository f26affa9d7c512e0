"use strict";
const DATA = JSON.parse(document.getElementById("data").textContent);
const hostOf = (name) => document.querySelector(`#${name} > .host`);

document.querySelectorAll("table.sortable").forEach(makeSortable);
if (DATA.curves.metrics.length) new Curves(hostOf("curves"), DATA.curves);
if (Object.keys(DATA.clients.settings).length) new Clients(hostOf("clients"), DATA.clients, Object.keys(DATA.curves.settings));
DATA.splits.splits.forEach((one) => drawSplit(hostOf("splits"), one, DATA.splits.splits.length === 1));
DATA.maps.maps.forEach((one) => drawMap(hostOf("maps"), one));
document.documentElement.dataset.ready = "yes";

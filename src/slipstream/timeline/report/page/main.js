// The beginning.

async function main() {
  const trouble = (words) => {
    byId("trouble").textContent = words;
    byId("trouble").hidden = false;
  };
  if (typeof DecompressionStream === "undefined") {
    return trouble("This browser is too old for the lanes and tables (it has no DecompressionStream): use one of 2023 or later.");
  }
  try {
    const source = byId("data");
    const { model, columns } = await unpack(source.textContent);
    source.remove();
    const page = new Page(model, columns);
    page.begin();
    window.slipstream = page; // for the console, and for tests
  } catch (error) {
    trouble(`The page cannot be shown: ${error.message}`);
    throw error;
  }
}

main();
